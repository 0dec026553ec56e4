"""One engine's stream of frames: opens its session, answers frame after frame."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING

from logitport.errors import InternalError, InvalidArgument, LogitportError, SessionClosed, to_proto
from logitport_proto import processing_pb2
from logitport_server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.metrics import Metrics
    from logitport_server.session.session import Session
    from logitport_server.transports.local_socket import LocalConnection, LocalSocketListener

logger = logging.getLogger(__name__)

# A step of 1024 requests, one new id each, takes 24 kB, and is answered faster than a thread is woken.
_SHORT_FRAME_BYTES = 1 << 16


class SessionStream:
    """One engine's stream: opens its session, answers frame after frame.

    Attributes:
        descriptors: the file descriptors that travel with the last answer.
    """

    def __init__(
        self,
        open_session: Callable[[processing_pb2.OpenSession], Session],
        metrics: Metrics,
        local_socket: LocalSocketListener | None,
    ) -> None:
        self._open_session = open_session
        self._metrics = metrics
        self._local_socket = local_socket
        self._local: LocalConnection | None = None
        self._lock = threading.Lock()
        # Held while a frame is answered: one that came by gRPC may be in hand when the local transport is taken.
        self._answering = threading.Lock()
        self._closed = False
        self._token = b""
        self._session: Session | None = None
        self.descriptors: list[int] = []
        self._last = processing_pb2.SessionResponse()
        self._counting: Callable[[], None] | None = None

    def may_take_long(self, frame: processing_pb2.SessionRequest) -> bool:
        """Whether the answer may not be made on the event loop: it runs a client's code, moves logits or reads much."""
        kind = frame.WhichOneof("frame")
        if kind == "step" and self._session is not None and self._session.may_take_long:
            return True
        return kind in ("add", "logits") or frame.ByteSize() > _SHORT_FRAME_BYTES

    def answer(self, frame: processing_pb2.SessionRequest, transport: str) -> processing_pb2.SessionResponse:
        """The reply to one frame, which came by `transport`; a frame that is refused as a whole changes nothing."""
        # Only the local transport's own thread may wait.
        if not self._answering.acquire(blocking=transport == "local"):
            error = InvalidArgument("this session's frames travel on its local transport, and one of them is in hand")
            return processing_pb2.SessionResponse(seq=frame.seq, error=to_proto(error))
        try:
            return self._answer(frame, transport)
        finally:
            self._answering.release()

    def record(self) -> None:
        """Count the last answer, once: when it has been sent, for the engine waits for that."""
        counting, self._counting = self._counting, None
        if counting is not None:
            counting()

    def close(self) -> None:
        """End the session with its gRPC stream; a frame that the local transport is processing is still answered."""
        if self._local_socket is not None:
            self._local_socket.withdraw(self._token)
        with self._lock:
            self._closed = True
            local = self._local
        if local is not None:
            local.close()
        else:
            self._forget()

    def attach(self, local: LocalConnection) -> bool:
        """From now on frames come by this local transport, and by gRPC no more; False if the session has ended."""
        with self._lock:
            if not self._closed:
                self._local = local
            return not self._closed

    def detach(self) -> None:
        """The local transport has ended, and what it shared goes with it; to wait for a GPU is for this thread."""
        with self._answering:
            if self._session is not None:
                self._session.regions.close()
        with self._lock:
            self._local = None
            ended = self._closed
        if ended:
            self._forget()

    def _answer(self, frame: processing_pb2.SessionRequest, transport: str) -> processing_pb2.SessionResponse:
        if frame.seq == self._last.seq != 0:
            return self._last
        self.descriptors = []
        reply = processing_pb2.SessionResponse(seq=frame.seq)
        if frame.seq < 1 or (self._last.seq and frame.seq != self._last.seq + 1):
            last = f"frame {self._last.seq}" if self._last.seq else "no frame"
            error = InvalidArgument(f"frame {frame.seq} came after {last}; seq is 1 or more, and grows by one")
            reply.error.CopyFrom(to_proto(error))
            return reply
        try:
            self._dispatch(frame, reply, transport)
        except LogitportError as error:
            reply.error.CopyFrom(to_proto(error))
        except Exception as error:
            logger.exception("frame %d", frame.seq)
            reply.error.CopyFrom(to_proto(InternalError(f"a defect of the server: {error!r}")))
        self._last = _once_only(reply) if reply.WhichOneof("frame") == "logits" else reply
        return reply

    def _forget(self) -> None:
        if self._session is not None:
            self._metrics.session_closed(self._session)
            self._session.close()
            self._session = None

    def _dispatch(
        self, frame: processing_pb2.SessionRequest, reply: processing_pb2.SessionResponse, transport: str
    ) -> None:
        started = time.perf_counter()
        kind = frame.WhichOneof("frame")
        if kind == "open":
            self._open(frame.open, reply.opened)
            return
        session = self._session
        if session is None:
            raise SessionClosed("the first frame of a session must be OpenSession")
        if self._local is not None and transport != "local":
            raise InvalidArgument("this session's frames travel on its local transport")
        if kind == "step":
            session.step(frame.step, reply.edits)
            self._answered(reply.edits, time.perf_counter() - started, transport)
        elif kind == "logits":
            session.edit_logits(frame.logits, reply.logits)
            memory = session.regions.memory(frame.logits.logits)
            self._answered(reply.logits, time.perf_counter() - started, transport, memory)
        elif kind == "add":
            session.add(frame.add, reply.added)
        elif kind == "remove":
            session.remove(frame.remove)
            reply.removed.SetInParent()
        elif kind in ("open_region", "share_device_memory", "close_region"):
            if transport != "local":
                raise InvalidArgument(f"{kind}: memory is shared on a local transport only")
            self._share(session, frame, reply)
        else:
            kinds = ", ".join(option.name for option in frame.DESCRIPTOR.oneofs_by_name["frame"].fields)
            raise InvalidArgument(f"a frame must set one of {kinds}")

    def _answered(
        self,
        reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited,
        seconds: float,
        transport: str,
        memory: str = "",
    ) -> None:
        def count() -> None:
            self._metrics.step(reply, seconds, transport)
            if memory:
                self._metrics.logits_read(memory)

        self._counting = count

    def _share(
        self, session: Session, frame: processing_pb2.SessionRequest, reply: processing_pb2.SessionResponse
    ) -> None:
        if frame.HasField("open_region"):
            reply.region_opened.region_id, region = session.open_region(frame.open_region)
            self.descriptors = [region.fd]
        elif frame.HasField("share_device_memory"):
            reply.region_opened.region_id = session.regions.share(frame.share_device_memory)
        else:
            session.regions.give_up(frame.close_region.region_id)
            reply.region_closed.SetInParent()

    def _open(self, opening: processing_pb2.OpenSession, opened: processing_pb2.SessionOpened) -> None:
        if self._session is not None:
            raise InvalidArgument("the session is open already; OpenSession is the first frame, and only the first")
        self._session = self._open_session(opening)
        self._metrics.session_opened(self._session)
        opened.session_id = uuid.uuid4().hex
        opened.max_requests = self._session.max_requests
        opened.server_version = VERSION
        if self._local_socket is not None:
            opened.local_transport.CopyFrom(self._local_socket.invite(self))
            opened.local_transport.device_uuid = self._session.regions.device_uuid
            self._token = opened.local_transport.access_token


def _once_only(reply: processing_pb2.SessionResponse) -> processing_pb2.SessionResponse:
    """What the frame gets that is sent again after its logits were processed."""
    error = InvalidArgument(f"frame {reply.seq} came twice, and its logits were processed already")
    return processing_pb2.SessionResponse(seq=reply.seq, error=to_proto(error))
