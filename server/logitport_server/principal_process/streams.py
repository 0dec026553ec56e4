"""The streams of one principal: its sessions, and its calls."""

from __future__ import annotations

import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport_proto import processing_pb2
from logitport_server.principal_process.relayed import RelayedConnection
from logitport_server.transports.local_connection import serve_connection
from logitport_server.transports.session_stream import SessionStream
from logitport_session.engine_session.apply import apply
from logitport_session.resources import defects
from logitport_session.resources.parsing import parse
from logitport_session.telemetry import tracing
from logitport_session.telemetry.scope import Scope
from logitport_session.trust.principals import Principal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_proto import common_pb2
    from logitport_server.metrics.session_counts import SessionCounts
    from logitport_server.principal_process.open_streams import OpenStreams
    from logitport_server.principal_process.process_messages import AttachConnection, OpenStream
    from logitport_server.transports.local_connection import FrameHandler
    from logitport_server.transports.refusals import Refusals
    from logitport_server.transports.session_table import SessionTable
    from logitport_session.engine_session.engine_session import EngineSession
    from logitport_session.engine_session.session_admissions import Admitted

    OpenSession = Callable[[Principal, processing_pb2.OpenSession], EngineSession]

logger = logging.getLogger(__name__)

# As many as a principal may have in flight.
_MAX_CALL_THREADS = 64


class Streams:
    """Serves the streams that the front door opens. The methods belong to the thread of the link.

    Args:
        name: name of the principal.
        open_session: opens a session.
        check: answers a call of the kind "check".
        max_message_bytes: the size limit of a frame.
        stall_seconds: how long an engine may take to receive a reply on a local connection.
        open_streams: counts the streams.
    """

    def __init__(
        self,
        name: str,
        open_session: OpenSession,
        check: Callable[[bytes], bytes],
        counts: SessionCounts,
        refusals: Refusals,
        session_table: SessionTable,
        max_message_bytes: int,
        stall_seconds: float,
        open_streams: OpenStreams,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._name = name
        self._open_session = open_session
        self._check = check
        self._counts = counts
        self._refusals = refusals
        self._session_table = session_table
        self._max_message_bytes = max_message_bytes
        self._sessions: dict[int, SessionStream] = {}
        self._open_streams = open_streams
        self._call_threads = ThreadPoolExecutor(_MAX_CALL_THREADS, "logitport-call")
        self._is_leaving = False

    def open(self, message: OpenStream, descriptors: list[int]) -> None:
        """Serve a stream on the socket of this descriptor. Without it, the front door ends the stream."""
        if not descriptors:
            logger.warning("a stream was not opened: no descriptor is free in this process")
            return
        connection = RelayedConnection(socket.socket(fileno=descriptors[0]))
        self._open_streams.begin()
        principal = Principal(self._name, frozenset(message.scopes))
        trace = tracing.continued(message.traceparent, message.tracestate)
        if message.kind != "session":
            answer = self._check if message.kind == "check" else partial(self._applied, principal=principal)
            try:
                self._call_threads.submit(self._call, connection, message.kind, answer, principal, trace)
            except RuntimeError as error:  # no thread can be started
                _fail(connection, error, "a call")
                self._close(connection)
            return
        held = _Held(partial(self._end, message.number, connection))
        release, stream = held.hold(), None
        try:
            stream = self._sessions[message.number] = SessionStream(
                partial(self._open_session, principal),
                self._counts,
                _Offer(message, self._max_message_bytes),
                self._refusals,
                session_table=self._session_table,
                peer=message.peer,
                trace=trace,
                hold=held.hold,
                number=message.number,
            )
            serving = (stream, connection, release)
            threading.Thread(target=self._serve_session, args=serving, name="logitport-session", daemon=True).start()
        except Exception as error:  # noqa: BLE001 - no thread can be started, or there is no memory
            _fail(connection, error, "a session")
            if stream is not None:
                stream.close()
            release()

    def attach(self, message: AttachConnection, descriptors: list[int]) -> None:
        """Serve a session on a connection of the local transport.

        Without its descriptor, the engine goes on by gRPC.
        """
        if not descriptors:
            logger.warning("a local connection was not attached: no descriptor is free in this process")
            return
        peer = socket.socket(fileno=descriptors[0])
        stream = self._sessions.get(message.number)
        if stream is None:  # it has ended meanwhile
            peer.close()
            return
        arguments = peer, stream, self._max_message_bytes, self._stall_seconds, self._counts.local_frame
        try:
            threading.Thread(target=serve_connection, args=arguments, name="logitport-local", daemon=True).start()
        except RuntimeError:  # no thread can be started: the engine goes on without the local transport
            peer.close()

    def leave(self) -> None:
        """State to all sessions that they should move. Those that end now still get the replies to their frames."""
        self._is_leaving = True
        self._session_table.drain()

    def _serve_session(self, stream: SessionStream, connection: RelayedConnection, release: Callable[[], None]) -> None:
        try:
            while (frame := connection.receive_other(stream, self._max_message_bytes)) is not None:
                try:
                    reply = stream.reply(frame, "grpc")
                except LogitportError as error:
                    connection.fail(error)
                    break
                connection.answer(reply)
                stream.record()
                del frame, reply  # they may be large, and the next frame long in coming
        except OSError:
            logger.debug("the front door has ended a session", exc_info=True)
        except Exception as error:  # noqa: BLE001 - only this session fails
            _fail(connection, error, "a session")
        finally:
            stream.close(finish=self._is_leaving)
            release()

    def _end(self, number: int, connection: RelayedConnection) -> None:
        self._sessions.pop(number, None)
        self._close(connection)

    def _close(self, connection: RelayedConnection) -> None:
        connection.close()
        self._open_streams.end()

    def _call(
        self,
        connection: RelayedConnection,
        kind: str,
        answer: Callable[[bytes], bytes],
        principal: Principal,
        trace: object,
    ) -> None:
        try:
            data = connection.receive()
            if data is None:
                return
            try:
                with Scope({"principal": principal.name}), tracing.span(kind, parent=trace):
                    reply = answer(data)
            except LogitportError as error:
                connection.fail(error)
            except Exception as error:  # noqa: BLE001 - only this call fails
                _fail(connection, error, "a call")
            else:
                connection.answer(reply)
        except OSError:
            logger.debug("the front door has ended a call", exc_info=True)
        finally:
            self._close(connection)

    def _applied(self, data: bytes, principal: Principal) -> bytes:
        """Return the reply to a call of Apply. Raises LogitportError."""
        started = time.perf_counter()
        message = parse(processing_pb2.ApplyRequest, data)
        refused = 0

        def record_refusals(failures: Sequence[common_pb2.Failure], admitted: Admitted) -> None:
            nonlocal refused
            refused = len(failures)
            self._refusals.record(principal, failures, len(message.requests), admitted.first_refused)

        response, durations = apply(message, partial(self._open_session, principal), record_refusals)
        tracing.current().set("failed_requests", len(response.failures))
        seconds = time.perf_counter() - started
        self._counts.step(response, seconds, "unary", durations, refused=refused)
        return response.SerializeToString()


def _fail(connection: RelayedConnection, error: Exception, what: str) -> None:
    """Send an unexpected error, and end the call. Raises OSError if the front door has ended."""
    try:
        connection.fail(defects.to_error(error, what))
    except MemoryError:
        connection.fail_without_memory()


class _Held:
    """Counts what is left of a stream.

    Args:
        when_none: called once, when nothing is left.
    """

    def __init__(self, when_none: Callable[[], object]) -> None:
        self._when_none = when_none
        self._count = 0
        self._lock = threading.Lock()

    def hold(self) -> Callable[..., None]:
        """Count one more. Returns a function to call once, when it has ended; it ignores arguments."""
        with self._lock:
            self._count += 1
        return self._release

    def _release(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            is_last = not self._count
        if is_last:
            self._when_none()


class _Offer:
    """Offers a connection of the local transport with the token that the front door has issued, and withdraws."""

    def __init__(self, message: OpenStream, max_message_bytes: int) -> None:
        self._offered = processing_pb2.LocalTransport(
            socket_path=message.socket_path, access_token=message.access_token, max_message_bytes=max_message_bytes
        )

    def offer(self, handler: FrameHandler) -> processing_pb2.LocalTransport | None:  # noqa: ARG002 - see `attach`
        return self._offered if self._offered.socket_path else None

    def withdraw(self, offered: processing_pb2.LocalTransport) -> None:
        """Do nothing: the front door withdraws the token when the call has ended."""
