"""Using up the server or a worker bit by bit: what is done a thousand times takes no more than what is done once."""

from __future__ import annotations

import struct
from typing import Any

import torch

from logitport import Client, CustomLogitProcessor, Request

VOCAB = 64


class AddOne(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.add_(1.0)


def test_sessions_that_come_and_go_do_not_wear_out_their_worker(attacked: Any) -> None:
    """A worker may have a few dozen descriptors open, and each session brings memory of its own."""
    with Client(attacked.target) as client:
        for _ in range(150):
            with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
                logits = torch.zeros(1, VOCAB)
                session.step({session.add(Request(processors=[(AddOne, {})])): []}).apply(logits)
                assert torch.equal(logits, torch.ones(1, VOCAB))
    assert "its worker ended" not in attacked.log.read_text()


def test_a_request_that_has_failed_is_failed_at_no_cost(raw_engine: Any, peak: Any) -> None:
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
