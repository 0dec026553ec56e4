"""The first use of a registered program in an engine's process, compared with later ones.

`python -m benchmarks.first_use TARGET VOCAB_SIZE DIGEST` is such an engine. It prints the milliseconds of each use:
from the first `Session.add` of 64 requests to the end of their first `apply`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import LOWER_QUARTILE, over_rounds
from benchmarks.program_kinds import MIN_P, MinP
from benchmarks.records import BarLine, Findings
from benchmarks.workloads import Workload
from logitport import Client, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.servers import Server

_ENGINES = 6
_LATER_USES = 5
_PROMPT = list(range(512))
# Between the opening of the session and its first request, so that the preparation ends. Hooks that open their session
# for the first request have no such time: this is not measured here.
_STARTED_SECONDS = 2.0
_BAN = ("disallowed_tokens", {"token_ids": [1]})


def first_use(server: Server, client: Client) -> Findings:
    """In engines that are processes of their own.

    Later uses pass through the same admission, step and program with requests of their own.
    """
    uses = []
    for number in range(_ENGINES):
        # Of another name for each engine, so that the server has not used it either.
        cls = type(f"MinP{number}", (MinP,), {"__module__": __name__})
        uses.append(_run_engine(server.target, client.register(cls).digest))
    table = np.array(uses)
    added = table[:, 0] - np.quantile(table[:, 1:], LOWER_QUARTILE, axis=1)
    summary = over_rounds(added)._replace(value=float(np.quantile(added, LOWER_QUARTILE)))
    return Findings([], [BarLine("min-p as a program, 64 rows: first use - later use", summary, 20.0, "ms")])


def _run_engine(target: str, digest: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.first_use", target, str(Workload().vocab_size), digest]
    ran = subprocess.run(command, capture_output=True, check=True)
    used: list[float] = json.loads(ran.stdout)
    return used


def engine(target: str, vocab_size: int, digest: str) -> list[float]:
    """Run requests of a built-in, and then the program."""
    logits = torch.randn(Workload().rows, vocab_size)
    with Client(target) as client, client.session(vocab_size=vocab_size, dtype=torch.float32) as session:

        def use(chain: Sequence[tuple[str, Any]]) -> float:
            begin = time.perf_counter()
            handles = [session.add(Request(_PROMPT, processors=chain)) for _ in logits]
            session.step({handle: [] for handle in handles}).apply(logits)
            end = time.perf_counter()
            for handle in handles:
                session.remove(handle)
            return (end - begin) * 1e3

        torch.softmax(logits, -1)  # torch starts its threads, as it has in an engine
        time.sleep(_STARTED_SECONDS)
        use([_BAN])
        return [use([(digest, MIN_P.params)]) for _ in range(1 + _LATER_USES)]


if __name__ == "__main__":
    print(json.dumps(engine(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
