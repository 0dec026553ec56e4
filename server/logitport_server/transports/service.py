"""The gRPC services: pass calls to the registry or to a session, together with the calling principal."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

import grpc

from logitport import calls
from logitport.core.bounded import PartyCounter
from logitport_proto import processing_pb2, processing_pb2_grpc
from logitport_server.access import StallLimit, Unparsed, current_call, parsed
from logitport_server.transports.departures import Departures
from logitport_server.transports.refusals import Refusals
from logitport_server.transports.stream import SessionStream
from logitport_server.transports.threads import on_thread
from logitport_session import tracing
from logitport_session.apply import apply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.core.fair_threads import FairThreads
    from logitport_server.access.grpc_errors import Context
    from logitport_server.metrics import Metrics
    from logitport_server.transports.local_socket import LocalSocketListener
    from logitport_session.principals import Principal
    from logitport_session.session import EngineSession
    from logitport_session.session_admissions import Admitted

    class OpenSession(Protocol):
        """Opens a session for the calling principal."""

        def __call__(self, opening: processing_pb2.OpenSession, principal: Principal) -> EngineSession: ...



class ProcessingService(processing_pb2_grpc.LogitProcessingServicer):
    """The calls of LogitProcessing: Apply, GetLoad, and the sessions of all engines.

    Args:
        accepts_session: whether the quotas allow another session of a principal.
    """

    def __init__(
        self,
        open_session: OpenSession,
        threads: FairThreads,
        metrics: Metrics,
        local_socket: LocalSocketListener | None,
        accepts_session: Callable[[Principal], bool] = lambda _: True,
        departures: Departures | None = None,
    ) -> None:
        self._departures = departures or Departures()
        self._accepts_session = accepts_session
        self._open_session = open_session
        self._threads = threads
        self._metrics = metrics
        self._local_socket = local_socket
        self._refusals = Refusals(metrics)
        self._idle: set[asyncio.Task[None]] = set()
        # Number of sessions by name of their principal.
        self._sessions: PartyCounter[str] = PartyCounter()
        self._draining = False

    async def Apply(  # type: ignore[override] # large messages are not parsed yet, and replies are serialized here
        self, request: processing_pb2.ApplyRequest | Unparsed, context: Context
    ) -> bytes:
        started = time.perf_counter()
        principal = current_call.get().principal

        def work() -> bytes:
            """Return the reply only: while gRPC sends it, the message with its copy of the logits is not needed."""
            message = parsed(processing_pb2.ApplyRequest, request)
            refused = 0

            def record_refusals(failures: Sequence[common_pb2.Failure], admitted: Admitted) -> None:
                nonlocal refused
                refused = len(failures)
                self._refusals.record(principal, failures, len(message.requests), admitted.first_refused)

            queue_seconds = time.perf_counter() - started
            open_session = partial(self._open_session, principal=principal)
            response, spending = apply(message, open_session, record_refusals)
            tracing.current().set("failed_requests", len(response.failures))
            reply = response.SerializeToString()
            seconds = time.perf_counter() - started
            self._metrics.step(response, seconds, "unary", principal.name, spending, queue_seconds, refused=refused)
            return reply

        return await on_thread(self._threads, work)

    async def GetLoad(self, request: processing_pb2.GetLoadRequest, context: Context) -> processing_pb2.GetLoadResponse:
        sessions, requests = self._metrics.load()
        sessions = max(sessions, self._sessions.total())  # with those that are being opened
        accepts = self._opens_sessions and self._accepts_session(current_call.get().principal)
        return processing_pb2.GetLoadResponse(sessions=sessions, requests=requests, accepts_sessions=accepts)

    async def Session(self, request_iterator: object, context: Context) -> None:  # type: ignore[override] # read/write API
        task, call = asyncio.current_task(), current_call.get()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        if not self._opens_sessions:
            await context.abort(grpc.StatusCode.UNAVAILABLE, calls.DRAINING)
        open_session = partial(self._open_session, principal=call.principal)
        stream = SessionStream(
            open_session,
            self._metrics,
            self._local_socket,
            self._refusals,
            self._departures,
            context.peer(),
            tracing.of_metadata(context.invocation_metadata()),
            call.hold,
        )
        name = call.principal.name
        self._sessions[name] += 1
        stall_limit = StallLimit("a reply was not received")
        try:
            while not self._draining:
                self._idle.add(task)
                frame = await context.read()
                self._idle.discard(task)
                if frame is grpc.aio.EOF:
                    return
                reply = await on_thread(self._threads, partial(stream.reply, frame.data, "grpc"))
                with stall_limit:
                    await context.write(reply)
                stream.record()
        except asyncio.CancelledError:
            if not self._draining:
                raise
        finally:
            stall_limit.close()
            self._idle.discard(task)
            self._sessions.remove(name)
            close = partial(_close, stream, call.hold(), finish=self._draining)
            if call.work is None or call.work.done():
                self._close_on_thread(close, name)
            else:  # the frame's work on a thread continues after the call was cancelled
                call.work.add_done_callback(lambda _: close())
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down; open a session on another one")

    @property
    def _opens_sessions(self) -> bool:
        return not (self._draining or self._departures.is_draining)

    def _close_on_thread(self, close: Callable[[], None], principal: str) -> None:
        """Close a stream on a thread, because freeing large states takes long."""
        try:
            self._threads.submit(principal, close)
        except RuntimeError:  # the server is shutting down
            close()

    def drain(self) -> None:
        """Finish the frames that are being processed, then end every session."""
        self._draining = True
        for task in list(self._idle):
            task.cancel()


def _close(stream: SessionStream, release: Callable[..., None], *, finish: bool) -> None:
    """Close the stream of a session that has ended, and then release its hold on the quotas."""
    try:
        stream.close(finish=finish)
    finally:
        release()
