"""Frames and replies of a session's stream, as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from logitport_server.transports.stream import SessionStream


def answer(
    stream: SessionStream, frame: processing_pb2.SessionRequest, transport: str
) -> processing_pb2.SessionResponse:
    """Process a frame that arrived by `transport`, and return its reply."""
    return processing_pb2.SessionResponse.FromString(stream.reply(frame.SerializeToString(), transport))
