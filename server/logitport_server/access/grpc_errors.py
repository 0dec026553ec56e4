"""Converts the error of a call to its gRPC status.

The status of each error code is in the table of `logitport.errors`. A server that ends, or that has lost the process
of a call, answers `unavailable`, which has no code: clients then try another server.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import grpc

from logitport.errors import METADATA_KEY, LogitportError, status_name, to_proto
from logitport_session.resources import defects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

# Bytes. gRPC limits metadata to 8 KiB; it percent-encodes a status's details, and base64-encodes binary values.
_MAX_TEXT_LENGTH = 1024


@asynccontextmanager
async def statuses(context: Context) -> AsyncIterator[None]:
    """Context that ends the call with the status of an error raised inside; trailing metadata holds the whole error."""
    try:
        try:
            yield
        except LogitportError as error:
            await _abort(context, error)
        except (grpc.aio.BaseError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - `to_error` logs it
            await _abort(context, defects.to_error(error, "a call"))
    except grpc.aio.InternalError as error:  # the connection is gone, so no status can be sent
        raise asyncio.CancelledError from error


async def unavailable(context: Context, reason: str) -> NoReturn:
    """End the call with the status UNAVAILABLE."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, reason)


async def _abort(context: Context, error: LogitportError) -> None:
    message = to_proto(error)
    message.message = message.message.encode()[:_MAX_TEXT_LENGTH].decode(errors="ignore")
    message.remote_traceback = message.remote_traceback.encode()[-_MAX_TEXT_LENGTH:].decode(errors="ignore")
    message.output = message.output.encode()[-_MAX_TEXT_LENGTH:].decode(errors="ignore")
    metadata = ((METADATA_KEY, message.SerializeToString()),)
    await context.abort(grpc.StatusCode[status_name(error)], message.message, metadata)
