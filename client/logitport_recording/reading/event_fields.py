"""What fields of recorded events mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from logitport.core.drafts import Drafts
from logitport.shipping.calls import unpack_int32

if TYPE_CHECKING:
    from logitport_proto.recording_pb2 import RecordedProcessor, RequestBegan, RequestStepped


def display_name(processor: RecordedProcessor) -> str:
    """Return a name for display."""
    return processor.builtin or processor.class_name or processor.name or processor.digest[:12] or "(unknown)"


def history_of(began: RequestBegan) -> list[int]:
    """Return the ids of a request before its next step."""
    return [*unpack_int32(began.request.prompt_ids).tolist(), *unpack_int32(began.request.output_ids).tolist()]


def drafts_of(step: RequestStepped) -> Drafts:
    """Return the draft tokens of a request in a step."""
    return Drafts(unpack_int32(step.draft_token_ids).tolist(), unpack_int32(step.draft_parents).tolist())


def json_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError if it is another value."""
    value = orjson.loads(data or b"{}")
    if not isinstance(value, dict):
        raise ValueError(f"{data!r:.100} is no JSON object")
    return value
