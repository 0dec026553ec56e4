"""The log of calls that are refused before their message is read."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

import pytest

from logitport import AccessDenied
from logitport_server.access.call_guard import Guard
from logitport_server.metrics import Metrics
from logitport_session.resources import log_limit

if TYPE_CHECKING:
    from logitport_server.access.grpc_errors import Context

METHOD = "/logitport.v1.LogitProcessing/Apply"


class Refuses:
    """Authenticates no caller."""

    def authenticate(self, metadata: object, auth_context: object) -> None:
        raise AccessDenied("no token", code=AccessDenied.NOT_AUTHENTICATED)


class FakeContext:
    """A call without metadata."""

    def invocation_metadata(self) -> None:
        return None

    def auth_context(self) -> dict[str, Any]:
        return {}

    def peer(self) -> str:
        return "ipv4:192.0.2.1:40312"


def test_callers_without_a_token_cannot_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    now = [1000.0]
    monkeypatch.setattr(log_limit.time, "monotonic", lambda: now[0])
    metrics = Metrics()
    guard = Guard(cast("Any", Refuses()), cast("Any", None), metrics, 1 << 20)

    async def call() -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(AccessDenied):
            await guard._authorize(task, METHOD, cast("Context", FakeContext()))

    def calls(count: int) -> None:
        for _ in range(count):
            asyncio.run(call())

    calls(20)
    (line,) = caplog.messages
    assert f"refused {METHOD} from ipv4:192.0.2.1:40312: no token" in line
    now[0] += 1.0
    calls(1)
    assert len(caplog.messages) == 2
    assert "19 before that were not logged" in caplog.messages[-1]
    counted = [sample.value for family in metrics.refusals.collect() for sample in family.samples]
    assert sum(counted) == 21
