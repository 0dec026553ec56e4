"""Fixtures: an inline executor, and an executor with real workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import payload
from logitport_runner.process_executor import ProcessExecutor
from logitport_sandbox import LAYERS
from logitport_server.executors.calls.worker import Deadlines
from logitport_server.executors.inline import InlineExecutor
from logitport_server.registry.loader import PayloadLoader
from logitport_session.processor_sources.source import Source
from logitport_session.trust.principals import Party, TrustDomain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport_server.executors.base import Executor

CALL_SECONDS, LOAD_SECONDS = 60.0, 200.0
# The deadline for calls of `impatient`.
SHORT_CALL_SECONDS = 1.0


@pytest.fixture(scope="session")
def zygote() -> Iterator[ProcessExecutor]:
    """Forks the workers of all files: its start takes seconds of CPU time."""
    yield from _executor(CALL_SECONDS, quarantine_after=3)


@pytest.fixture(scope="module")
def workers(zygote: ProcessExecutor) -> Iterator[ProcessExecutor]:
    """Real workers, with all sandbox layers that this machine has. Those of a file end with it."""
    yield zygote
    zygote._slots.close()


@pytest.fixture(scope="module")
def impatient() -> Iterator[ProcessExecutor]:
    """Real workers with a short deadline for calls. None is quarantined for missing it."""
    yield from _executor(SHORT_CALL_SECONDS, quarantine_after=1000)


def _executor(call_seconds: float, quarantine_after: int) -> Iterator[ProcessExecutor]:
    missing = [layer.name for layer in LAYERS if layer.missing() is not None]
    executor = ProcessExecutor(Deadlines(call_seconds, LOAD_SECONDS), quarantine_after, without=missing)
    executor.ready()
    yield executor
    executor.close()


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
