"""Front doors with real workers, and links whose answers the test gives."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.executors.worker_processes.worker_zygotes import WorkerZygotes
from logitport_server.principal_process.link import Answer
from tests.server.lent_workers import Lender, missing_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def zygotes() -> Iterator[WorkerZygotes]:
    """Fork the workers of all files: their start takes seconds of CPU time."""
    started = WorkerZygotes(without=missing_layers())
    started.ready()
    yield started
    started.close()


@pytest.fixture
def lender_of(zygotes: WorkerZygotes) -> Iterator[Callable[..., Lender]]:
    """Starts front doors with these options of the server."""
    lenders = []

    def start(**options: Any) -> Lender:
        lenders.append(Lender(zygotes, **options))
        return lenders[-1]

    yield start
    for lender in lenders:
        lender.close()


class PlayedLink:
    """A link whose answers the test gives.

    Attributes:
        calls: messages that wait for an answer, each with its future.
        posted: messages without an answer.
        answer: the answer to all further calls; None if the test sets them.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Future[Answer]]] = []
        self.posted: list[Any] = []
        self.answer: Any = None
        self._handlers: dict[type[Any], Any] = {}

    def handle(self, kind: type[Any], handler: Any) -> None:
        self._handlers[kind] = handler

    def begin(self, message: Any) -> Future[Answer]:
        self.calls.append((message, Future()))
        if self.answer is not None:
            self.calls[-1][1].set_result(Answer(self.answer, []))
        return self.calls[-1][1]

    def post(self, message: Any) -> None:
        self.posted.append(message)

    def receive(self, message: Any) -> Any:
        return self._handlers[type(message)](message, [])


@pytest.fixture
def link() -> Any:
    return PlayedLink()
