"""How a call ends: with a status, or with nobody there to take one."""

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
    """What gRPC hands a handler; `gone` says whether its client has gone."""

    def __init__(self, *, gone: bool) -> None:
        self.gone = gone
        self.told: list[tuple[grpc.StatusCode, str, Any]] = []

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        self.told.append((code, details, metadata))
        raise grpc.aio.InternalError if self.gone else grpc.aio.AbortError


def end(call: Any, error: BaseException) -> None:
    async def ending() -> None:
        async with statuses(call):
            raise error

    asyncio.run(ending())


def test_an_error_of_ours_is_told_whole() -> None:
    call = Call(gone=False)
    with pytest.raises(grpc.aio.AbortError):
        end(call, LimitExceeded("too much of it"))
    ((code, details, ((key, value),)),) = call.told
    assert (code, details, key) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much of it", METADATA_KEY)
    assert isinstance(from_proto(common_pb2.Error.FromString(value)), LimitExceeded)


def test_a_defect_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    call = Call(gone=False)
    with pytest.raises(grpc.aio.AbortError):
        end(call, ZeroDivisionError("by nought"))
    assert [(code, details) for code, details, _ in call.told] == [
        (grpc.StatusCode.INTERNAL, "a defect of the server: ZeroDivisionError('by nought')")
    ]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("error", [LimitExceeded("too much of it"), grpc.aio.InternalError()])
def test_a_client_that_has_gone_is_no_defect(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Neither where a status, nor where a reply could not be sent."""
    caplog.set_level(logging.INFO)
    call = Call(gone=True)
    with pytest.raises(asyncio.CancelledError):
        end(call, error)
    assert len(call.told) == isinstance(error, LimitExceeded)
    assert not caplog.records
