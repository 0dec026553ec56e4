"""The quarantine of processors on a server with several principals."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, ProcessorFailed, Request
from logitport_server.access import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.conftest import RunningServer

VOCAB = 8
SCOPES = {"author": ["apply", "register"], "stranger": ["apply", "register"], "victim": ["apply"]}
# More than the server keeps records of one principal.
CRASHES = 140


class Leaves(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        if custom_param_list[0].get("leave"):
            os._exit(1)
        return logits.add_(1)


class AlsoLeaves(Leaves):
    pass


def crashing(number: int) -> type[CustomLogitProcessor]:
    class Crashes(CustomLogitProcessor):
        def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
            os._exit(number % 100 + 1)

    return Crashes


@pytest.fixture(scope="module")
def clients(
    serving: Callable[..., AbstractContextManager[RunningServer]],
) -> Iterator[dict[str, Client]]:
    """A client for each principal."""
    made = {name: new_token(name, scopes) for name, scopes in SCOPES.items()}
    with ExitStack() as stack:
        options = ("--enable-custom-logit-processor", "--quarantine-after", "1")
        target = stack.enter_context(serving(*options, grants=[grant for _, grant in made.values()])).target
        yield {name: stack.enter_context(Client(target, token=token, timeout=300)) for name, (token, _) in made.items()}


def failure(client: Client, name: Any, **params: Any) -> Any:
    """The error of a call; None if it succeeds."""
    request = Request([1], processors=[(name, params)])
    return client.apply(torch.zeros(1, VOCAB), [request], check=False).failures.get(0)


def test_a_caller_quarantines_a_shared_processor_only_for_itself(clients: dict[str, Client]) -> None:
    clients["author"].register(Leaves, name="author/leaves", shared=True)
    assert type(failure(clients["stranger"], "author/leaves", leave=True)) is ProcessorFailed
    assert isinstance(failure(clients["stranger"], "author/leaves"), ProcessorFailed)
    assert failure(clients["victim"], "author/leaves") is None
    assert failure(clients["author"], "author/leaves") is None


def test_crashes_of_a_stranger_do_not_evict_a_quarantine(clients: dict[str, Client]) -> None:
    clients["author"].register(AlsoLeaves, name="author/also-leaves", shared=True)
    assert type(failure(clients["victim"], "author/also-leaves", leave=True)) is ProcessorFailed
    for begin in range(0, CRASHES, 20):
        requests = [Request([1], processors=[(crashing(number), {})]) for number in range(begin, begin + 20)]
        result = clients["stranger"].apply(torch.zeros(len(requests), VOCAB), requests, check=False)
        assert [type(error) for error in result.failures.values()] == [ProcessorFailed] * len(requests)
    assert isinstance(failure(clients["victim"], "author/also-leaves"), ProcessorFailed)
    assert isinstance(failure(clients["stranger"], crashing(CRASHES - 1)), ProcessorFailed)
    assert failure(clients["author"], "author/also-leaves") is None


def test_a_quarantine_just_before_the_end_is_stored(
    serving: Callable[..., AbstractContextManager[RunningServer]], tmp_path: Path
) -> None:
    """The server ends before it would have stored the quarantine at its next poll."""
    options = ("--store", str(tmp_path / "store"), "--enable-custom-logit-processor", "--quarantine-after", "1")
    with serving(*options) as server, Client(server.target, timeout=300) as client:
        digest = client.register(Leaves, name="team/leaves").digest
        assert type(failure(client, "team/leaves", leave=True)) is ProcessorFailed
        assert server.stop() == 0
    with serving(*options) as server, Client(server.target, timeout=300) as client:
        assert "quarantine-after" in client.processor(digest).quarantined
        assert isinstance(failure(client, "team/leaves"), ProcessorFailed)
