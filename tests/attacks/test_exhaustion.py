"""Exhaustion by repetition: repeated actions must not accumulate resources in the server or a worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from logitport import Client, Request
from tests.attacks.conftest import columns, int32
from tests.toy_processors import AddOneInPlace

VOCAB = 64
_LONG = 1_000_000


@pytest.mark.slow
def test_many_sessions_do_not_exhaust_their_worker(attacked: Any) -> None:
    """A worker may open a few dozen descriptors, and each session shares its own memory with it."""
    with Client(attacked.target) as client:
        for _ in range(150):
            with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
                logits = torch.zeros(1, VOCAB)
                session.step({session.add(Request(processors=[(AddOneInPlace, {})])): []}).apply(logits)
                assert torch.equal(logits, torch.ones(1, VOCAB))
    assert "its worker ended" not in attacked.log.read_text()


def test_repeated_failures_of_a_request_use_no_memory(raw_engine: Any, peak: Any) -> None:
    engine = raw_engine()
    engine.attach()
    engine.send(add={"requests": [{}]})
    for _ in range(5000):
        (failure,) = engine.send(step=columns((), base_lengths=int32(5))).edits.failures
        assert "history has 5 ids" in failure.error.message
    assert peak.growth_bytes < 8 << 20


def test_penalties_of_a_long_history_are_refused(raw_engine: Any, peak: Any, code: Any) -> None:
    """A frame of 4 MB, whose counted ids would take 1.6 GB. The session goes on."""
    ids = int32(*range(_LONG))
    penalty = {"processor": {"builtin": "frequency_penalty"}, "params": b'{"frequency_penalty": 1.0}'}
    engine = raw_engine(vocab_size=_LONG)
    engine.attach()
    (failure,) = engine.send(
        add={"requests": [{"request": {"output_ids": ids, "processors": [penalty] * 16}}]}
    ).added.failures
    assert code(failure.error) == "LIMIT_EXCEEDED"
    assert "--max-principal-memory" in failure.error.message
    assert not engine.send(add={"requests": [{"request": {"processors": [penalty] * 16}}]}).added.failures
    assert peak.growth_bytes < 400 << 20
