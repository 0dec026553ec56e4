"""The gRPC service LogitProcessing of a front door: passes sessions and calls to the processes of their principals."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Literal

import grpc

from logitport.errors import DRAINING, LimitExceeded, LogitportError, ServerUnavailable
from logitport.system.frame_limits import LARGE_MESSAGE_BYTES
from logitport_proto import processing_pb2, processing_pb2_grpc
from logitport_server.access import ByteBudgets, StallLimit, Unparsed, current_call
from logitport_server.access.grpc_errors import unavailable
from logitport_server.front_door.relay import Relay
from logitport_server.principal_process.process_messages import AttachConnection, OpenStream
from logitport_session.resources import descriptors as descriptors_of_process
from logitport_session.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from logitport_server.access.call_guard import AuthorizedCall
    from logitport_server.access.grpc_errors import Context
    from logitport_server.front_door.processes import Processes
    from logitport_server.front_door.running_process import RunningProcess
    from logitport_server.transports.local_socket import LocalSocketListener
    from logitport_session.trust.principals import Principal

logger = logging.getLogger(__name__)

# What the answer to a check of a payload has in addition to its bytes.
_CHECKED_BYTES = 1 << 16
# Replies of the maximum size of one principal's sessions at the same time. gRPC copies each of them.
_MAX_LARGEST_REPLIES = 2
# Garbage is collected so long after a call with a large message has failed.
_COLLECT_SECONDS = 1.0


class FrontDoorService(processing_pb2_grpc.LogitProcessingServicer):
    """The calls of LogitProcessing. All methods belong to the event loop.

    Args:
        processes: the processes of the principals.
        local_socket: the local transport, if the server offers it.
        load: returns the number of open sessions, and of the requests that they hold or expect.
        refresh: updates these numbers.
        accepts_session: whether the quotas allow another session of a principal.
        is_leaving: whether the server accepts no more sessions, because it drains.
        max_message_bytes: the size limit of a message.
    """

    def __init__(
        self,
        processes: Processes,
        local_socket: LocalSocketListener | None,
        load: Callable[[], tuple[int, int]],
        refresh: Callable[[], Awaitable[None]],
        accepts_session: Callable[[Principal], bool],
        is_leaving: Callable[[], bool],
        max_message_bytes: int,
    ) -> None:
        self._processes = processes
        self._local_socket = local_socket
        self._load = load
        self._refresh = refresh
        self._accepts_session = accepts_session
        self._is_leaving = is_leaving
        self._max_reply_bytes = max_message_bytes + _CHECKED_BYTES
        self._replies = ByteBudgets(_MAX_LARGEST_REPLIES * max_message_bytes)
        self._numbers = itertools.count(1)
        self._idle: set[asyncio.Task[None]] = set()
        self._num_sessions = 0
        self._largest = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._draining = False

    async def Apply(  # type: ignore[override] # messages are neither parsed nor serialized here
        self, request: processing_pb2.ApplyRequest | Unparsed, context: Context
    ) -> bytes:
        assert isinstance(request, Unparsed)  # noqa: S101 - see `deserializer`
        return await self.exchange("apply", request.data, context)

    async def exchange(self, kind: Literal["apply", "check"], data: bytes, context: Context) -> bytes:
        """Let the caller's process answer a call; see `OpenStream.kind`.

        Ends the gRPC call if the process has ended. Raises LogitportError if it has refused the call.
        """
        call = current_call.get()
        async with _unavailable(context):
            stream = await self._open(call, kind, trace=tracing.headers())
            try:
                self._largest = max(self._largest, len(data))
                stream.relay.send(data)
                return await stream.receive_last()
            except BaseException:
                if len(data) > LARGE_MESSAGE_BYTES:  # the error, and the frames of its traceback, form a cycle
                    asyncio.get_running_loop().call_later(_COLLECT_SECONDS, gc.collect, 1)
                raise
            finally:
                self._end(stream, call.hold())

    async def GetLoad(self, request: processing_pb2.GetLoadRequest, context: Context) -> processing_pb2.GetLoadResponse:
        await self._refresh()
        sessions, requests = self._load()
        sessions = max(sessions, self._num_sessions)  # with those that are being opened
        accepts = not self._refuses_sessions and self._accepts_session(current_call.get().principal)
        return processing_pb2.GetLoadResponse(sessions=sessions, requests=requests, accepts_sessions=accepts)

    async def Session(self, request_iterator: object, context: Context) -> None:  # type: ignore[override] # read/write API
        task, call = asyncio.current_task(), current_call.get()
        assert task is not None  # noqa: S101 - a coroutine always runs in one
        if self._refuses_sessions:
            await unavailable(context, DRAINING)
        self._num_sessions += 1
        try:
            async with _unavailable(context):
                await self._relay(task, call, context)
        finally:
            self._num_sessions -= 1

    async def _relay(self, task: asyncio.Task[None], call: AuthorizedCall, context: Context) -> None:
        """Relay the frames of a session until it ends."""
        stream: _Stream | None = None
        stall_limit = StallLimit("a reply was not received")
        try:
            while not self._draining:
                self._idle.add(task)
                frame = await context.read()
                self._idle.discard(task)
                if frame is grpc.aio.EOF:
                    return
                if stream is None:
                    stream = await self._open(call, "session", trace=_headers_of(context), peer=context.peer())
                stream.relay.send(frame.data)
                size = len(frame.data)
                del frame  # it may be large, and is in the process soon
                reply = await stream.receive()
                self._largest = max(self._largest, size, len(reply))
                with stall_limit:
                    await context.write(reply)
                del reply  # the next frame may be long in coming
                stream.relay.forget_reply()
        except asyncio.CancelledError:
            if not self._draining:
                raise
        finally:
            stall_limit.close()
            self._idle.discard(task)
            if stream is not None:
                self._end(stream, call.hold())
        await unavailable(context, "the server is shutting down; open a session on another one")

    def take_freed(self) -> bool:
        """Whether much memory may have become free since the last call."""
        largest, self._largest = self._largest, 0
        return largest > LARGE_MESSAGE_BYTES

    def drain(self) -> None:
        """Finish the frames that are being processed, then end every session."""
        self._draining = True
        for task in list(self._idle):
            task.cancel()

    async def wait(self, seconds: float) -> int:
        """Wait until nothing is left of the streams that have ended. Returns the number of the others."""
        if self._ending:
            await asyncio.wait(list(self._ending), timeout=max(0.0, seconds))
        return len(self._ending)

    @property
    def _refuses_sessions(self) -> bool:
        return self._draining or self._is_leaving()

    async def _open(
        self,
        call: AuthorizedCall,
        kind: Literal["session", "apply", "check"],
        *,
        trace: tuple[str, str],
        peer: str = "",
    ) -> _Stream:
        """Open a stream to the principal's process. Raises LogitportError."""
        process = await self._processes.get(call.principal.name)
        with descriptors_of_process.reported():
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            number = next(self._numbers)
            message = OpenStream(
                number=number,
                kind=kind,
                scopes=sorted(call.principal.scopes),
                peer=peer,
                traceparent=trace[0],
                tracestate=trace[1],
            )
            if kind == "session" and self._local_socket is not None:
                offered = self._local_socket.issue_token(_HandOver(process, number))
                message.socket_path, message.access_token = offered.socket_path, offered.access_token
            try:
                with descriptors_of_process.reported():
                    process.post(message, [theirs.fileno()])
            except BaseException:
                self._revoke(message.access_token)
                ours.close()
                raise
        # The reply to a call is about as large as its message, and the call has room for that already.
        room = self._replies.room(call.principal.name) if kind == "session" else None
        stream = _Stream(process, Relay(ours, self._max_reply_bytes, room), message.access_token)
        self._processes.begin_stream(process)
        process.ended.add_done_callback(stream.end)
        return stream

    def _end(self, stream: _Stream, release: Callable[..., None]) -> None:
        """End a stream. It counts for the quotas until its end is closed, here or by its process."""
        self._revoke(stream.access_token)
        stream.relay.finish()
        task = asyncio.ensure_future(self._wait_for_end(stream, release))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _wait_for_end(self, stream: _Stream, release: Callable[..., None]) -> None:
        try:
            await stream.relay.ended
        finally:
            stream.process.ended.remove_done_callback(stream.end)
            self._processes.end_stream(stream.process)
            release()

    def _revoke(self, access_token: bytes) -> None:
        if self._local_socket is not None and access_token:
            self._local_socket.revoke_token(access_token)


@asynccontextmanager
async def _unavailable(context: Context) -> AsyncIterator[None]:
    """Context that ends the call with the status UNAVAILABLE if its process has ended: clients then try again."""
    try:
        yield
    except ServerUnavailable as error:
        await unavailable(context, error.message)


class _Stream:
    """A stream of a process.

    Attributes:
        access_token: for its connection of the local transport; b"" if that is not offered.
    """

    def __init__(self, process: RunningProcess, relay: Relay, access_token: bytes) -> None:
        self.process = process
        self.relay = relay
        self.access_token = access_token

    async def receive(self) -> bytes:
        """Return a reply; see `Relay.receive`. Raises LimitExceeded if the process could not open the stream."""
        try:
            return await self.relay.receive()
        except ServerUnavailable:
            if self.process.is_running:
                # It had no descriptor for the stream, or no memory for an error. It logs which, if it can.
                raise LimitExceeded(
                    "the server is out of file descriptors, or the principal's process is out of memory; send fewer "
                    "requests at once, or try again later"
                ) from None
            raise

    async def receive_last(self) -> bytes:
        """Do the same as `receive`, for the only reply of a stream, which then ends.

        The process closes its end later. Until then, the next call of a caller could be one too many. A cancelled call
        goes on in the process, so that its stream ends with that.
        """
        try:
            reply = await self.receive()
        except LogitportError:
            self.relay.end()
            raise
        self.relay.end()
        return reply

    def end(self, _: object) -> None:
        """End with the process: a child of it may hold the socket open."""
        self.relay.end()


class _HandOver:
    """Hands a connection of the local transport over to the process of its session. On any thread."""

    def __init__(self, process: RunningProcess, number: int) -> None:
        self._process = process
        self._number = number

    def __call__(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # no descriptor is free: the engine goes on by gRPC
            self._process.post(AttachConnection(number=self._number), [connection.fileno()])


def _headers_of(context: Context) -> tuple[str, str]:
    """Return the headers of W3C Trace Context of a call: traceparent and tracestate; "" for those that are missing."""
    if not tracing.is_on():
        return "", ""
    headers = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    return headers.get("traceparent", ""), headers.get("tracestate", "")
