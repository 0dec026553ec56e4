"""Using up what a worker may have, by coming and going: nothing of a session stays in it when the session has ended."""

from __future__ import annotations

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
