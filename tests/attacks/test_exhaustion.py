"""Exhaustion by repetition: repeated actions must not accumulate resources in the server or a worker."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

from logitport import Client, Request
from tests.toy_processors import AddOneInPlace

VOCAB = 64


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
    columns = {
        "slots": bytes(4),
        "generations": bytes(4),
        "base_lengths": struct.pack("<i", 5),
        "history_crcs": bytes(4),
    }
    for _ in range(5000):
        (failure,) = engine.send(step=columns).edits.failures
        assert "history has 5 ids" in failure.error.message
    assert peak.growth_bytes < 8 << 20
