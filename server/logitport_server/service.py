"""gRPC in and out: parse a frame, call the session, turn our errors into statuses."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from logitport.errors import METADATA_KEY, InternalError, LogitportError, status_name, to_proto
from logitport_proto import processing_pb2, processing_pb2_grpc, registry_pb2, registry_pb2_grpc
from logitport_server.apply import apply
from logitport_server.stream import SessionStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Future

    from logitport_server.lane import LaneListener
    from logitport_server.metrics import Metrics
    from logitport_server.registry import Registry
    from logitport_server.session import Session
    from logitport_server.threads import Threads

    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    OpenSession: TypeAlias = Callable[[processing_pb2.OpenSession], Session]

logger = logging.getLogger(__name__)

# Bytes. gRPC carries 8 KiB of metadata, percent-encodes a status's details, and base64-encodes what is binary.
_LONGEST_TEXT = 1024


class RegistryService(registry_pb2_grpc.ProcessorRegistryServicer):
    """The four calls of ProcessorRegistry."""

    def __init__(self, registry: Registry, threads: Threads) -> None:
        self._registry = registry
        self._threads = threads

    async def Register(self, request: registry_pb2.RegisterRequest, context: Context) -> registry_pb2.RegisterResponse:
        async with _statuses(context):
            register = partial(self._registry.register, request.serialized, request.name, replace=request.replace)
            info = await asyncio.wrap_future(self._threads.submit(register))
            return registry_pb2.RegisterResponse(processor=info)

    async def Get(self, request: registry_pb2.GetRequest, context: Context) -> registry_pb2.GetResponse:
        async with _statuses(context):
            return registry_pb2.GetResponse(processor=self._registry.describe(request.processor))

    async def List(self, request: registry_pb2.ListRequest, context: Context) -> registry_pb2.ListResponse:
        async with _statuses(context):
            return registry_pb2.ListResponse(processors=self._registry.describe_all())

    async def Delete(self, request: registry_pb2.DeleteRequest, context: Context) -> registry_pb2.DeleteResponse:
        async with _statuses(context):
            return registry_pb2.DeleteResponse(names=self._registry.delete(request.processor))


class ProcessingService(processing_pb2_grpc.LogitProcessingServicer):
    """Apply, and the sessions of all engines."""

    def __init__(
        self, open_session: OpenSession, threads: Threads, metrics: Metrics, lanes: LaneListener | None
    ) -> None:
        self._open_session = open_session
        self._threads = threads
        self._metrics = metrics
        self._lanes = lanes
        self._idle: set[asyncio.Task[None]] = set()
        self._draining = False

    async def Apply(self, request: processing_pb2.ApplyRequest, context: Context) -> processing_pb2.ApplyResponse:
        async with _statuses(context):
            started = time.perf_counter()
            response = await asyncio.wrap_future(self._threads.submit(apply, request, self._open_session))
            self._metrics.step(response, time.perf_counter() - started, "unary")
            return response

    async def Session(self, request_iterator: object, context: Context) -> None:  # type: ignore[override] # read/write API
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        async with _statuses(context):
            stream = SessionStream(self._open_session, self._metrics, self._lanes)
            working: Future[processing_pb2.SessionResponse] | None = None
            try:
                while not self._draining:
                    self._idle.add(task)
                    frame = await context.read()
                    self._idle.discard(task)
                    if frame is grpc.aio.EOF:
                        return
                    if stream.may_take_long(frame):
                        working = self._threads.submit(stream.answer, frame, "grpc")
                        reply = await asyncio.wrap_future(working)
                    else:
                        reply = stream.answer(frame, "grpc")
                    await context.write(reply)
            except asyncio.CancelledError:
                if not self._draining:
                    raise
            finally:
                self._idle.discard(task)
                if working is None:
                    stream.close()
                else:  # a call that was given up may still be running
                    working.add_done_callback(lambda _: stream.close())
        if self._draining:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down; open a session with another")

    def drain(self) -> None:
        """Let the frames in hand be answered, then end every session."""
        self._draining = True
        for task in list(self._idle):
            task.cancel()


@asynccontextmanager
async def _statuses(context: Context) -> AsyncIterator[None]:
    """Our errors as gRPC statuses, with the whole error in the trailing metadata."""
    try:
        yield
    except LogitportError as error:
        await _abort(context, error)
    except (grpc.aio.AbortError, asyncio.CancelledError):
        raise
    except Exception as error:
        logger.exception("a call failed")
        await _abort(context, InternalError(f"a defect of the server: {error!r}"))


async def _abort(context: Context, error: LogitportError) -> None:
    told = to_proto(error)
    told.message = told.message.encode()[:_LONGEST_TEXT].decode(errors="ignore")
    told.remote_traceback = told.remote_traceback.encode()[-_LONGEST_TEXT:].decode(errors="ignore")
    metadata = ((METADATA_KEY, told.SerializeToString()),)
    await context.abort(grpc.StatusCode[status_name(error)], told.message, metadata)
