"""Descriptions of the processors of requests in a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport import payload
from logitport.errors import LogitportError
from logitport_proto.recording_pb2 import RecordedProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_proto import common_pb2


def describe(
    call: common_pb2.ProcessorCall, admitted: str, name: str, *, payload_of: Callable[[str], str], with_payload: bool
) -> RecordedProcessor:
    """Describe a processor of a chain.

    Args:
        call: the processor and its parameters.
        admitted: its digest, by which its admission has replaced its registered name.
        name: its registered name; "" for none.
        payload_of: returns a registered payload by its digest; "" if it is not known.
        with_payload: whether the description has the payload.
    """
    by = call.processor.WhichOneof("by")
    if by == "builtin":
        return RecordedProcessor(builtin=call.processor.builtin, params=call.params)
    digest = call.processor.digest if by == "digest" else admitted
    text = call.processor.payload if by == "payload" else payload_of(digest)
    class_name = ""
    if text:
        try:
            shipped = payload.parse(text)
        except LogitportError:
            pass
        else:
            digest, class_name = shipped.digest, shipped.class_name
    return RecordedProcessor(
        name=name,
        digest=digest,
        class_name=class_name,
        params=call.params,
        payload=text if with_payload else "",
    )
