"""Runs steps of an embedded session, for `core/wheels.py`.

Prints which core runs, how many steps it computed, and a digest of the logits after them. Needs no extra.
"""

from __future__ import annotations

import gc
import hashlib

import numpy as np

from logitport import Client, Request
from logitport.core import compiled
from logitport_session.steps.compiled_batch import CompiledBatch

_VOCABULARY, _STEPS = 5000, 12
_CHAINS = (
    [("no_repeat_ngram", {"ngram_size": 2})],
    [("logit_bias", {"logit_bias": {"5": 2.5}}), ("frequency_penalty", {"frequency_penalty": 0.3})],
    [("bad_words", {"bad_words_ids": [[3], [4, 5]]}), ("min_tokens", {"min_tokens": 9, "stop_token_ids": [2]})],
    [("presence_penalty", {"presence_penalty": 0.4}), ("disallowed_tokens", {"token_ids": [7]})],
)


def main() -> None:
    """Print the line."""
    random = np.random.default_rng(7)
    digest = hashlib.sha256()
    with Client.embedded().session(vocab_size=_VOCABULARY) as session:
        requests = [
            session.add(Request(random.integers(0, 12, 30).tolist(), processors=chain)) for chain in 2 * _CHAINS
        ]
        new: list[list[int]] = [[] for _ in requests]
        for _ in range(_STEPS):
            logits = random.standard_normal((len(requests), _VOCABULARY)).astype(np.float32)
            session.step(dict(zip(requests, new, strict=True))).apply(logits)
            digest.update(logits.tobytes())
            new = random.integers(0, 12, (len(requests), 1)).tolist()
        steps = sum(batch.activity[0] for batch in gc.get_objects() if isinstance(batch, CompiledBatch))
    print(compiled.NAME, steps, digest.hexdigest())


if __name__ == "__main__":
    main()
