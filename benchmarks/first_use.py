"""The first use of a registered program in an engine: `python -m benchmarks.first_use TARGET VOCAB_SIZE DIGEST...`.

Prints the milliseconds of each use of each program, as JSON: adding the requests, and their first step.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from logitport import Client, Request
from logitport.ops import apply_edits  # noqa: F401 - as in an engine, which has imported it

ROWS = 64
_PROMPT = list(range(512))
_STARTED_SECONDS = 2.0


def main(target: str, vocab_size: int, digests: list[str]) -> None:
    """Use each program twice, each time with requests of their own."""
    logits = torch.randn(ROWS, vocab_size)
    with (
        Client(target) as client,
        client.session(vocab_size=vocab_size, dtype=torch.float32, transport="local") as session,
    ):
        torch.softmax(logits, -1)  # torch starts its threads
        ban = [("disallowed_tokens", {"token_ids": [1]})]

        def use(chain: object) -> tuple[float, float]:
            begin = time.perf_counter()
            handles = [session.add(Request(_PROMPT, processors=chain)) for _ in range(ROWS)]
            added = time.perf_counter()
            session.step({handle: [] for handle in handles}).apply(logits)
            end = time.perf_counter()
            for handle in handles:
                session.remove(handle)
            return (added - begin) * 1e3, (end - added) * 1e3

        time.sleep(_STARTED_SECONDS)  # an engine starts longer than that
        use(ban)
        print(json.dumps([[use([(digest, {"min_p": 0.1})]) for _ in range(2)] for digest in digests]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
