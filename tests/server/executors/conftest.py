"""Fixtures: an inline executor, and an executor with real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import payload
from logitport_runner.process_executor import ProcessExecutor
from logitport_server.executors.calls.worker import Deadlines
from logitport_server.executors.inline import InlineExecutor
from logitport_server.registry.loader import PayloadLoader
from logitport_session.processor_sources.source import Source
from logitport_session.trust.principals import Party, TrustDomain
from tests.server.lent_workers import missing_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport_server.executors.base import Executor

CALL_SECONDS, LOAD_SECONDS = 60.0, 200.0
# The deadline for calls of `impatient`.
SHORT_CALL_SECONDS = 1.0


@pytest.fixture(scope="session")
def zygote() -> Iterator[ProcessExecutor]:
    """Forks the workers of all files: its start takes seconds of CPU time."""
    executor = start_executor()
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def workers(zygote: ProcessExecutor) -> Iterator[ProcessExecutor]:
    """Real workers, with all sandbox layers that this machine has. Those of a file end with it."""
    yield zygote
    zygote._slots.close()


@pytest.fixture(scope="module")
def impatient() -> Iterator[ProcessExecutor]:
    """Real workers with a short deadline for calls. None is quarantined for missing it."""
    executor = start_executor(SHORT_CALL_SECONDS, quarantine_after=1000)
    yield executor
    executor.close()


@pytest.fixture
def make_executor() -> Iterator[Callable[..., ProcessExecutor]]:
    """Starts executors of a test's own, with the arguments of `start_executor`."""
    made: list[ProcessExecutor] = []

    def make(*arguments: Any, **options: Any) -> ProcessExecutor:
        made.append(start_executor(*arguments, **options))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def start_executor(call_seconds: float = CALL_SECONDS, quarantine_after: int = 3, **options: Any) -> ProcessExecutor:
    """Start an executor with real workers, in the layers of the sandbox that this machine has."""
    executor = ProcessExecutor(
        Deadlines(call_seconds, LOAD_SECONDS), quarantine_after, without=missing_layers(), **options
    )
    executor.ready()
    return executor


@pytest.fixture(params=["inline", "process"])
def executor(request: pytest.FixtureRequest) -> Executor:
    return InlineExecutor(PayloadLoader(8)) if request.param == "inline" else request.getfixturevalue("workers")


@pytest.fixture(scope="session")
def ship() -> Callable[..., Source]:
    """Converts a class to the source of a payload that a tenant has shipped."""

    def source(processor: Any, tenant: str = "a") -> Source:
        shipped = payload.parse(payload.dumps(processor))
        return Source(shipped.digest, payload=shipped, domain=TrustDomain("engine", Party("engine", tenant)))

    return source
