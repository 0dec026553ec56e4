"""Fixtures: front doors with real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.executors.worker_processes.worker_zygotes import WorkerZygotes
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
