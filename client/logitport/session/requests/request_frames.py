"""Frames that admit requests or drop them, and the check of their replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import LogitportError, from_proto
from logitport.shipping.calls import pack_int32
from logitport.system.frame_limits import ADD_FRAME_BYTES
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport.session.handle import Handle


def add_frames(handles: Sequence[Handle], *, in_background: bool = False) -> Iterator[processing_pb2.AddRequests]:
    """Make the frames that admit requests, or send them again, with their present histories.

    There is more than one frame if a single one would be a large message.
    """
    frame, size_bytes = processing_pb2.AddRequests(in_background=in_background), 0
    for handle in handles:
        addition = frame.requests.add(
            slot=handle.slot,
            generation=handle.generation,
            programs_on_server=handle.programs_on_server,
            **handle.trace,
        )
        handle.write(addition.request)
        size_bytes += addition.ByteSize()
        if size_bytes > ADD_FRAME_BYTES:
            yield frame
            frame, size_bytes = processing_pb2.AddRequests(in_background=in_background), 0
    if frame.requests:
        yield frame


def removal(handles: Sequence[Handle]) -> processing_pb2.SessionRequest:
    """Make the frame that drops requests."""
    slots, generations = (pack_int32([getattr(it, name) for it in handles]) for name in ("slot", "generation"))
    return processing_pb2.SessionRequest(remove=processing_pb2.RemoveRequests(slots=slots, generations=generations))


def take_removed(reply: processing_pb2.SessionResponse) -> None:
    """Check the reply to `removal`. Raises the server's error, with which it may still hold the requests."""
    if reply.HasField("error"):
        raise from_proto(reply.error)


def check_added(frame: processing_pb2.AddRequests, added: processing_pb2.RequestsAdded) -> None:
    """Check the columns of a reply. Raises LogitportError."""
    sent = len(frame.requests)
    if len(added.reads_logits) != sent or len(added.pending) not in (0, sent) or len(added.chains) != sent:
        raise LogitportError(
            f"{sent} requests were added, but the columns of the server's reply have the lengths "
            f"{len(added.reads_logits)}, {len(added.pending)} and {len(added.chains)}; close the session"
        )
