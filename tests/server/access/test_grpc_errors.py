"""How a call ends: with a status, or with its cancellation if the client is disconnected."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from logitport.errors import METADATA_KEY, LimitExceeded, from_proto
from logitport_proto import common_pb2
from logitport_server.access.grpc_errors import statuses


class Call:
    """The context that gRPC passes to a handler; `gone` is true if its client is disconnected."""

    def __init__(self, *, gone: bool) -> None:
        self.gone = gone
        self.aborts: list[tuple[grpc.StatusCode, str, Any]] = []

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        self.aborts.append((code, details, metadata))
        raise grpc.aio.InternalError if self.gone else grpc.aio.AbortError


def end(call: Any, error: BaseException) -> None:
    async def ending() -> None:
        async with statuses(call):
            raise error

    asyncio.run(ending())


def test_a_logitport_error_is_sent_in_full() -> None:
    call = Call(gone=False)
    with pytest.raises(grpc.aio.AbortError):
        end(call, LimitExceeded("too much of it"))
    ((code, details, ((key, value),)),) = call.aborts
    assert (code, details, key) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much of it", METADATA_KEY)
    assert isinstance(from_proto(common_pb2.Error.FromString(value)), LimitExceeded)


def test_a_defect_is_sent_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    call = Call(gone=False)
    with pytest.raises(grpc.aio.AbortError):
        end(call, ZeroDivisionError("by nought"))
    assert [(code, details) for code, details, _ in call.aborts] == [
        (grpc.StatusCode.INTERNAL, "a defect of the server: ZeroDivisionError('by nought')")
    ]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("error", [LimitExceeded("too much of it"), grpc.aio.InternalError()])
def test_a_disconnected_client_is_not_logged_as_a_defect(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Neither if a status could not be sent, nor if a reply could not be sent."""
    caplog.set_level(logging.INFO)
    call = Call(gone=True)
    with pytest.raises(asyncio.CancelledError):
        end(call, error)
    assert len(call.aborts) == isinstance(error, LimitExceeded)
    assert not caplog.records
