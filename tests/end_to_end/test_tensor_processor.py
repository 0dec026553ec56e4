"""A `TensorProcessor` is shipped like any other class, and runs in the sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from logitport import Float, InvalidArgument, Request, RequestsFailed, TensorProcessor
from tests.programs.samplers import MinP

if TYPE_CHECKING:
    from logitport import Client

INF = float("inf")


class Presence(TensorProcessor):
    params = {"penalty": Float(default=1)}
    window = 1

    def process(self, logits, params, history):
        last = torch.arange(logits.shape[-1]) == history.ids[:, -1:]
        seen = history.token_counts(generated_only=True) * params.penalty[:, None]
        return (logits - seen).masked_fill(last, -INF)


def test_requests_with_different_parameters_share_a_call(client: Client) -> None:
    logits = torch.tensor([[0.0, 1.0, 5.0], [0.0, 1.0, 5.0], [0.0, 1.0, 5.0]])
    requests = [Request([1], processors=[(MinP, params)]) for params in ({"min_p": 0.01}, {"min_p": 0.5}, {})]
    result = client.apply(logits, requests).logits
    assert result.tolist() == [[-INF, 1.0, 5.0], [-INF, -INF, 5.0], [-INF, -INF, 5.0]]


def test_the_history_of_a_session(client: Client) -> None:
    with client.session(vocab_size=4) as session:
        a = session.add(Request([0, 1], processors=[(Presence, {"penalty": 2.0})]))
        b = session.add(Request([2], processors=[(Presence, {})]))
        steps = []
        for new_ids in ({a: [], b: []}, {a: [2], b: [3]}, {a: [0], b: [3]}):
            logits = torch.zeros(2, 4)
            session.step(new_ids).apply(logits)
            steps.append(logits.tolist())
    assert steps == [
        [[0, -INF, 0, 0], [0, 0, -INF, 0]],
        [[0, 0, -INF, 0], [0, 0, 0, -INF]],
        [[-INF, 0, -2, 0], [0, 0, 0, -INF]],
    ]


def test_bad_parameters_fail_their_request_only(client: Client) -> None:
    requests = [Request([1], processors=[(MinP, params)]) for params in ({"min_p": 2}, {"min_p": 0.5})]
    with pytest.raises(RequestsFailed) as failed:
        client.apply(torch.tensor([[0.0, 5.0], [0.0, 5.0]]), requests)
    assert list(failed.value.failures) == [0]
    assert isinstance(failed.value.failures[0], InvalidArgument)
    assert "'min_p' is 2; it must be a number in [0, 1]" in str(failed.value.failures[0])
