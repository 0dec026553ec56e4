"""Replies of over 1 MiB on the local transport, and the frames after them. The server is a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from logitport import Client, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer

VOCAB = 4096
REQUESTS, GENERATED = 64, 3000  # edits of 64 * 3000 ids with their values: 1.5 MiB
STEPS = 3
REQUEST = Request(range(8), range(GENERATED), processors=[("frequency_penalty", {"frequency_penalty": 0.5})])


@pytest.fixture(scope="module")
def server(serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[RunningServer]:
    """A server of this module alone: its end would fail the tests of others."""
    with serving() as server:
        yield server


def penalized(step: int) -> torch.Tensor:
    """The row of a request to which a new id was added in each of so many steps."""
    row = torch.zeros(VOCAB)
    row[:GENERATED] = -0.5
    row[GENERATED] = -0.5 * step
    return row


def test_requests_are_removed_after_large_replies(server: RunningServer) -> None:
    with Client(server.target) as client, client.session(vocab_size=VOCAB) as session:
        assert session.transport == "local"
        handles = [session.add(REQUEST) for _ in range(REQUESTS)]
        for step in range(STEPS):
            logits = torch.zeros(REQUESTS, VOCAB)
            session.step({handle: [GENERATED] if step else [] for handle in handles}).apply(logits)
            assert torch.equal(logits, penalized(step).expand(REQUESTS, VOCAB))
        session.remove(*handles)
        with client.session(vocab_size=VOCAB) as other:
            logits = torch.zeros(1, VOCAB)
            other.step({other.add(REQUEST): []}).apply(logits)
            assert torch.equal(logits, penalized(0)[None])
    assert server.process.poll() is None


@pytest.mark.parametrize("requests", [1, REQUESTS])
def test_a_connection_ends_after_a_large_reply(server: RunningServer, requests: int) -> None:
    with Client(server.target) as client:
        for _ in range(2):
            with client.session(vocab_size=VOCAB) as session:
                handles = [session.add(REQUEST) for _ in range(requests)]
                session.step({handle: [] for handle in handles}).apply(torch.zeros(requests, VOCAB))
    assert server.process.poll() is None
