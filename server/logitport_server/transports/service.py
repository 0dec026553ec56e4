"""The gRPC services: pass calls to the registry or to a session, together with the calling principal."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

import grpc

from logitport import calls
from logitport.core.bounded import PartyCounter
from logitport.errors import LogitportError
from logitport_proto import common_pb2, processing_pb2, processing_pb2_grpc, registry_pb2, registry_pb2_grpc
from logitport_server.access import StallLimit, Unparsed, current_call, parsed
from logitport_server.transports.departures import Departures
from logitport_server.transports.refusals import Refusals
from logitport_server.transports.stream import SessionStream
from logitport_server.transports.threads import on_thread
from logitport_session import tracing
from logitport_session.apply import apply
from logitport_session.parsing import SMALL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.core.fair_threads import FairThreads
    from logitport_server.access.grpc_errors import Context
    from logitport_server.executors.output import OutputLog
    from logitport_server.metrics import Metrics
    from logitport_server.registry.registry import Registry
    from logitport_server.transports.local_socket import LocalSocketListener
    from logitport_session.principals import Principal
    from logitport_session.session import EngineSession
    from logitport_session.session_admissions import Admitted
    from logitport_session.turns import Turns

    class OpenSession(Protocol):
        """Opens a session for the calling principal."""

        def __call__(self, opening: processing_pb2.OpenSession, principal: Principal) -> EngineSession: ...


logger = logging.getLogger(__name__)

# Characters of an error in the log; errors quote what the caller sent.
_MAX_REASON_LENGTH = 500


class LoopShare:
    """Lets each principal process one frame on the event loop in one iteration of the loop.

    Further frames of its sessions, which arrived at the same time, are processed on its share of the threads: otherwise
    a principal with many sessions would use most of the loop's time.
    """

    def __init__(self) -> None:
        self._served: set[str] = set()

    def take(self, principal: str) -> bool:
        """Whether the principal may process a frame on the event loop now."""
        if principal in self._served:
            return False
        if not self._served:
            asyncio.get_running_loop().call_soon(self._served.clear)
        self._served.add(principal)
        return True


class RegistryService(registry_pb2_grpc.ProcessorRegistryServicer):
    """The calls of ProcessorRegistry. They run on threads, because the registry may wait for its store."""

    def __init__(self, registry: Registry, threads: FairThreads, turns: Turns, output: OutputLog) -> None:
        self._registry = registry
        self._output = output
        self._threads = threads
        self._turns = turns

    async def Register(
        self, request: registry_pb2.RegisterRequest | Unparsed, context: Context
    ) -> registry_pb2.RegisterResponse:
        principal = current_call.get().principal

        def register() -> tuple[registry_pb2.ProcessorInfo, str]:
            aside = self._turns.aside(principal.name)
            message = parsed(registry_pb2.RegisterRequest, request, aside)
            info = self._registry.register(
                message.payload, message.name, principal, replace=message.replace, shared=message.shared, turn=aside
            )
            return info, message.name

        try:
            info, name = await on_thread(self._threads, register)
        except LogitportError as error:
            kind, message = type(error).__name__, error.message[:_MAX_REASON_LENGTH]
            logger.info(
                "refused a registration by %s: %s: %r",
                principal.display_name,
                kind,
                message,
                extra={"event": "registration_refused", "principal": principal.name, "error": kind},
            )
            raise
        logger.info(
            "%s registered %s, digest %s, named %s",
            principal.display_name,
            info.class_name or "a processor",
            info.digest,
            name or "nothing",
            extra={
                "event": "processor_registered",
                "principal": principal.name,
                "processor": info.digest,
                "processor_name": name,
            },
        )
        return registry_pb2.RegisterResponse(processor=info, registry_id=self._registry.id)

    async def Get(self, request: registry_pb2.GetRequest, context: Context) -> registry_pb2.GetResponse:
        describe = partial(self._registry.describe, request.processor, current_call.get().principal)
        return registry_pb2.GetResponse(processor=await on_thread(self._threads, describe))

    async def List(self, request: registry_pb2.ListRequest, context: Context) -> registry_pb2.ListResponse:
        principal = current_call.get().principal
        describe = partial(self._registry.describe_all, principal)
        if request.digests:
            describe = partial(self._registry.describe_digests, request.digests, principal)
        return registry_pb2.ListResponse(
            processors=await on_thread(self._threads, describe), registry_id=self._registry.id
        )

    async def Delete(self, request: registry_pb2.DeleteRequest, context: Context) -> registry_pb2.DeleteResponse:
        principal = current_call.get().principal
        names = await on_thread(self._threads, partial(self._registry.delete, request.processor, principal))
        logger.info(
            "%s deleted %s",
            principal.display_name,
            request.processor,
            extra={
                "event": "processor_deleted",
                "principal": principal.name,
                "processor": request.processor,
            },
        )
        return registry_pb2.DeleteResponse(names=names)

    async def GetOutput(
        self, request: registry_pb2.GetOutputRequest, context: Context
    ) -> registry_pb2.GetOutputResponse:
        principal, digest = current_call.get().principal, request.processor
        kept = self._output.read(principal.name, digest)  # also of a payload that is not registered
        if kept is None:
            describe = partial(self._registry.describe, request.processor, principal)
            digest = (await on_thread(self._threads, describe)).digest
            kept = self._output.read(principal.name, digest)
        if kept is None:
            return registry_pb2.GetOutputResponse()
        name, printed, dropped = kept
        return registry_pb2.GetOutputResponse(
            outputs=[
                common_pb2.ProcessorOutput(processor=digest, display_name=name, text=text, time=at)
                for text, at in printed
            ],
            dropped_characters=dropped,
        )


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
        turns: Turns,
        accepts_session: Callable[[Principal], bool] = lambda _: True,
        departures: Departures | None = None,
    ) -> None:
        self._departures = departures or Departures()
        self._turns = turns
        self._accepts_session = accepts_session
        self._open_session = open_session
        self._threads = threads
        self._metrics = metrics
        self._local_socket = local_socket
        self._refusals = Refusals(metrics)
        self._idle: set[asyncio.Task[None]] = set()
        # Number of sessions by name of their principal.
        self._sessions: PartyCounter[str] = PartyCounter()
        self._loop_share = LoopShare()
        self._draining = False

    async def Apply(  # type: ignore[override] # large messages are not parsed yet, and replies are serialized here
        self, request: processing_pb2.ApplyRequest | Unparsed, context: Context
    ) -> bytes:
        started = time.perf_counter()
        principal = current_call.get().principal

        def work() -> bytes:
            """Return the reply only: while gRPC sends it, the message with its copy of the logits is not needed."""
            message = parsed(processing_pb2.ApplyRequest, request, self._turns.aside(principal.name))
            refused = 0

            def record_refusals(failures: Sequence[common_pb2.Failure], admitted: Admitted) -> None:
                nonlocal refused
                refused = len(failures)
                self._refusals.record(principal, failures, len(message.requests), admitted.first_refused)

            with self._turns.of(principal.name):
                queue_seconds = time.perf_counter() - started
                open_session = partial(self._open_session, principal=principal)
                response, spending = apply(message, open_session, record_refusals)
                tracing.current().set("failed_requests", len(response.failures))
                reply = response.SerializeToString()
            seconds = time.perf_counter() - started
            self._metrics.step(response, seconds, "unary", principal.name, spending, queue_seconds, refused=refused)
            return reply

        self._turns.join(principal.name)
        try:
            return await on_thread(self._threads, work)
        finally:
            self._turns.leave(principal.name)

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
            self._turns,
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
                arrived = time.perf_counter()
                reply = self._reply_at_once(stream, frame, name)
                if reply is None:
                    work = partial(self._reply_on_thread, stream, frame, name, arrived)
                    reply = await on_thread(self._threads, work)
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

    def _reply_at_once(self, stream: SessionStream, frame: Unparsed, principal: str) -> bytes | None:
        """Process a frame on the event loop if it is a short step in the compiled core. Otherwise, return None.

        All other frames go to a thread: the size of a frame does not bound its work, and only the core knows the work
        of a step before it computes it.
        """
        alone = len(self._sessions) == 1
        if alone or self._loop_share.take(principal):
            return stream.reply_compiled(frame.data, "grpc", may_wait=False)
        return None

    def _reply_on_thread(self, stream: SessionStream, frame: Unparsed, principal: str, arrived: float) -> bytes:
        reply = stream.reply_compiled(frame.data, "grpc", queued_seconds=time.perf_counter() - arrived)
        if reply is None:
            turn = self._turns.aside(principal) if len(frame.data) > SMALL_BYTES else nullcontext()
            message = parsed(processing_pb2.SessionRequest, frame, turn)
            reply = stream.answer(message, "grpc", arrived=arrived).SerializeToString()
        return reply

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
