"""Descriptions of requests in a recording: their tokens, chains and parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from logitport import payload
from logitport.errors import LogitportError
from logitport.recording.events import RecordedProcessor, RequestBegan
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray


@dataclass
class BeganRequest:
    """A request at its first step, with copies of its ids. Its message does not change after the admission."""

    request_id: str
    message: common_pb2.Request
    processors: tuple[str, ...]
    names: tuple[str, ...]
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]


def describe(key: int, began: BeganRequest, *, payload_of: Callable[[str], str], with_payloads: bool) -> RequestBegan:
    """Make the event of a request.

    Args:
        key: its number.
        began: the request.
        payload_of: returns a registered payload by its digest; "" if it is not known.
        with_payloads: whether the event has the payloads of its processors.
    """
    message = began.message
    return RequestBegan(
        key,
        began.request_id,
        began.prompt,
        began.output,
        tuple(
            _describe_processor(call, digest, name, payload_of, with_payloads)
            for call, digest, name in zip(message.processors, began.processors, began.names, strict=False)
        ),
        orjson.loads(message.sampling_params or b"{}"),
        "skip" if message.on_error == common_pb2.ON_ERROR_SKIP else "abort",
    )


def _describe_processor(
    call: common_pb2.ProcessorCall, admitted: str, name: str, payload_of: Callable[[str], str], with_payloads: bool
) -> RecordedProcessor:
    """Make the part of a processor. At its admission its digest has replaced its registered name."""
    by = call.processor.WhichOneof("by")
    params = orjson.loads(call.params or b"{}")
    if by == "builtin":
        return RecordedProcessor(builtin=call.processor.builtin, params=params)
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
    return RecordedProcessor("", name, digest, class_name, params, text if with_payloads else "")
