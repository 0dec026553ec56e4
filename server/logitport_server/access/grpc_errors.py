"""Our errors as gRPC statuses."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from logitport.errors import METADATA_KEY, InternalError, LogitportError, status_name, to_proto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger(__name__)

# Bytes. gRPC carries 8 KiB of metadata, percent-encodes a status's details, and base64-encodes what is binary.
_MAX_TEXT_LENGTH = 1024


@asynccontextmanager
async def statuses(context: Context) -> AsyncIterator[None]:
    """What is raised ends the call, with the whole error in the trailing metadata."""
    try:
        try:
            yield
        except LogitportError as error:
            await _abort(context, error)
        except (grpc.aio.BaseError, asyncio.CancelledError):
            raise
        except Exception as error:
            logger.exception("a call failed")
            await _abort(context, InternalError(f"a defect of the server: {error!r}"))
    except grpc.aio.InternalError as error:  # gRPC reaches the client no more: there is nobody to tell
        raise asyncio.CancelledError from error


async def _abort(context: Context, error: LogitportError) -> None:
    told = to_proto(error)
    told.message = told.message.encode()[:_MAX_TEXT_LENGTH].decode(errors="ignore")
    told.remote_traceback = told.remote_traceback.encode()[-_MAX_TEXT_LENGTH:].decode(errors="ignore")
    metadata = ((METADATA_KEY, told.SerializeToString()),)
    await context.abort(grpc.StatusCode[status_name(error)], told.message, metadata)
