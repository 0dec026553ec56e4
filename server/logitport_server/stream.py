"""One engine's stream of frames: opens its session, answers frame after frame."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import TYPE_CHECKING

from logitport.errors import InternalError, InvalidArgument, LogitportError, SessionClosed, to_proto
from logitport_proto import processing_pb2
from logitport_server.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.metrics import Metrics
    from logitport_server.session import Session

logger = logging.getLogger(__name__)


class SessionStream:
    """One engine's stream: opens its session, answers frame after frame."""

    def __init__(self, open_session: Callable[[processing_pb2.OpenSession], Session], metrics: Metrics) -> None:
        self._open_session = open_session
        self._metrics = metrics
        self._session: Session | None = None
        self._last = processing_pb2.SessionResponse()

    async def answer(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        """The reply to one frame; a frame that is refused as a whole changes nothing."""
        if self._last.seq and frame.seq == self._last.seq:
            return self._again()
        try:
            if self._last.seq and frame.seq != self._last.seq + 1:
                raise InvalidArgument(f"frame {frame.seq} came after frame {self._last.seq}; seq grows by one")
            reply = await self._dispatch(frame)
        except LogitportError as error:
            reply = processing_pb2.SessionResponse(error=to_proto(error))
        except Exception as error:
            logger.exception("frame %d", frame.seq)
            reply = processing_pb2.SessionResponse(error=to_proto(InternalError(f"a defect of the server: {error!r}")))
        reply.seq = frame.seq
        self._last = reply
        return reply

    def close(self) -> None:
        """Forget the session and all its state."""
        if self._session is not None:
            self._metrics.session_closed()
            self._session = None

    async def _dispatch(self, frame: processing_pb2.SessionRequest) -> processing_pb2.SessionResponse:
        kind = frame.WhichOneof("frame")
        if kind == "open":
            return self._open(frame.open)
        session = self._session
        if session is None:
            raise SessionClosed("the first frame of a session must be OpenSession")
        reply = processing_pb2.SessionResponse()
        if kind == "step":
            started = time.perf_counter()
            if session.runs_shipped_code:
                await asyncio.to_thread(session.step, frame.step, reply.edits)
            else:
                session.step(frame.step, reply.edits)
            self._metrics.step(reply.edits, time.perf_counter() - started, "stream")
        elif kind == "logits":
            started = time.perf_counter()
            await asyncio.to_thread(session.edit_logits, frame.logits, reply.logits)
            self._metrics.step(reply.logits, time.perf_counter() - started, "stream")
        elif kind == "add":
            await asyncio.to_thread(session.add, frame.add, reply.added)
        elif kind == "remove":
            session.remove(frame.remove)
            reply.removed.SetInParent()
        else:
            raise InvalidArgument("a frame must set one of open, add, remove, step, logits")
        return reply

    def _open(self, opening: processing_pb2.OpenSession) -> processing_pb2.SessionResponse:
        if self._session is not None:
            raise InvalidArgument("the session is open already; OpenSession is the first frame, and only the first")
        self._session = self._open_session(opening)
        self._metrics.session_opened()
        opened = processing_pb2.SessionOpened(
            session_id=uuid.uuid4().hex, max_requests=self._session.max_requests, server_version=VERSION
        )
        return processing_pb2.SessionResponse(opened=opened)

    def _again(self) -> processing_pb2.SessionResponse:
        if self._last.WhichOneof("frame") == "logits":
            error = InvalidArgument(f"frame {self._last.seq} came twice, and its logits were processed already")
            return processing_pb2.SessionResponse(seq=self._last.seq, error=to_proto(error))
        return self._last
