"""Frames and replies as JSON that is the same for every client.

Clients choose slots, generations and numbers of frames, send histories as lists or columns, and send several requests
in one frame or in several. None of this is in the JSON: requests have their names, and each request of an `add` or
`remove` frame is an item of its own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport_proto import processing_pb2
from tests.proto.golden.files import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.message import Message

    from logitport_proto import common_pb2

# {"receive": kind and content of a frame, "answer": of its reply, or a fault}
Item = dict[str, Any]


class Names:
    """The names of a session's requests, by slot. A name is the request's `request_id`."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def of(self, slot: int) -> str:
        return self._names.get(slot, f"slot {slot}")

    def slot(self, name: str) -> int:
        return next(slot for slot, each in self._names.items() if each == name)

    def admit(self, frame: processing_pb2.AddRequests) -> None:
        for one in frame.requests:
            self._names[one.slot] = one.request.request_id


def items_of(frame: processing_pb2.SessionRequest, names: Names) -> list[dict[str, Any]]:
    """Convert a frame to items without their answers. An `add` without requests has none."""
    kind = frame.WhichOneof("frame")
    if kind == "open":
        opening = {name: getattr(frame.open, name) for name in ("vocab_size", "datatype", "max_draft_tokens")}
        return [{"open": opening | {"eos_token_ids": list(frame.open.eos_token_ids)}}]
    if kind == "add":
        names.admit(frame.add)
        return [_addition(one.request) for one in frame.add.requests]
    if kind == "remove":
        return [{"remove": names.of(slot)} for slot in _ints(frame.remove.slots)]
    if kind == "step":
        return [{"step": _step(frame.step, names)}]
    assert kind == "logits", kind
    return [{"logits": rows_of(frame.logits.logits)}]


def rows_of(tensor: common_pb2.Tensor) -> list[str]:
    """Convert logits to the hexadecimal bytes of each row."""
    rows, width = tensor.shape
    assert len(tensor.raw) == rows * width * 4
    return [tensor.raw[row * width * 4 : (row + 1) * width * 4].hex() for row in range(rows)]


def answers_of(
    frame: processing_pb2.SessionRequest, reply: processing_pb2.SessionResponse, names: Names
) -> list[dict[str, Any]]:
    """Convert the reply to a frame to the answers of its items."""
    kind = reply.WhichOneof("frame")
    if kind == "error":
        return [{"error": to_json(reply.error, names)}] * len(items_of(frame, names))
    if kind == "opened":
        return [{"opened": to_json(reply.opened, names)}]
    if kind == "added":
        failures = {one.slot: one for one in reply.added.failures}
        return [
            {
                "added": {
                    "reads_logits": reply.added.reads_logits[index],
                    "chain": to_json(reply.added.chains[index], names),
                    **({"error": to_json(failures[one.slot].error, names)} if one.slot in failures else {}),
                }
            }
            for index, one in enumerate(frame.add.requests)
        ]
    if kind == "removed":
        return [{"removed": {}} for _ in items_of(frame, names)]
    if kind == "logits":
        rows = rows_of(reply.logits.logits)
        reply = processing_pb2.SessionResponse.FromString(reply.SerializeToString())
        reply.logits.ClearField("logits")
        return [{"logits": {"logits": rows} | to_json(reply.logits, names)}]
    assert kind == "edits", kind
    return [{"edits": to_json(reply.edits, names)}]


def reply_of(
    frame: processing_pb2.SessionRequest, answers: Sequence[Mapping[str, Any]], names: Names
) -> processing_pb2.SessionResponse:
    """Convert the answers of a frame's items to its reply."""
    reply = processing_pb2.SessionResponse(seq=frame.seq)
    kind = frame.WhichOneof("frame")
    if errors := [answer["error"] for answer in answers if "error" in answer]:
        from_json(errors[0], reply.error, names)
    elif kind == "add":
        reply.added.SetInParent()
        reply.added.reads_logits = bytes(answer["added"]["reads_logits"] for answer in answers)
        for one, answer in zip(frame.add.requests, answers, strict=True):
            from_json(answer["added"]["chain"], reply.added.chains.add(), names)
            if error := answer["added"].get("error"):
                from_json(error, reply.added.failures.add(slot=one.slot).error, names)
    elif kind == "remove":
        reply.removed.SetInParent()
    else:
        ((name, answer),) = answers[0].items()
        message = getattr(reply, name)
        message.SetInParent()
        if name == "logits":
            message.logits.CopyFrom(frame.logits.logits)
            message.logits.raw = bytes.fromhex("".join(answer["logits"]))
            answer = {key: value for key, value in answer.items() if key != "logits"}
        from_json(answer, message, names)
    return reply


def to_json(message: Message, names: Names) -> dict[str, Any]:
    """Convert a message: columns become lists, and slots the names of requests."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.full_name in COLUMNS:
            found[field.name] = np.frombuffer(value, COLUMNS[field.full_name]).tolist()
        elif field.message_type is not None:
            found[field.name] = (
                to_json(value, names) if hasattr(value, "ListFields") else [to_json(one, names) for one in value]
            )
        elif field.name == "slot":
            found["request"] = names.of(value)
        elif isinstance(value, str | int | float):
            found[field.name] = value
        else:
            found[field.name] = value.decode() if isinstance(value, bytes) else list(value)
    if "slot" in message.DESCRIPTOR.fields_by_name and "request" not in found:
        found["request"] = names.of(0)
    return found


def from_json(content: Mapping[str, Any], message: Any, names: Names) -> None:
    """Set the fields of a message from the result of `to_json`."""
    for name, value in content.items():
        if name == "request":
            message.slot = names.slot(value)
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        if field.full_name in COLUMNS:
            setattr(message, name, np.array(value, COLUMNS[field.full_name]).tobytes())
        elif isinstance(value, dict):
            getattr(message, name).SetInParent()
            from_json(value, getattr(message, name), names)
        elif isinstance(value, list):
            for one in value:
                if field.message_type is None:
                    getattr(message, name).append(one)
                else:
                    from_json(one, getattr(message, name).add(), names)
        else:
            setattr(message, name, value.encode() if field.type == field.TYPE_BYTES else value)


def _addition(request: common_pb2.Request) -> dict[str, Any]:
    chain = []
    for call in request.processors:
        naming = call.processor.WhichOneof("by")
        chain.append([naming, getattr(call.processor, naming), json.loads(call.params or "{}")])
    return {
        "add": request.request_id,
        "prompt": [*request.prompt_token_ids, *_ints(request.prompt_ids)],
        "output": [*request.output_token_ids, *_ints(request.output_ids)],
        "processors": chain,
        "on_error": request.on_error,
    }


def _step(step: processing_pb2.Step, names: Names) -> dict[str, Any]:
    slots = _ints(step.slots)
    nothing = [0] * len(slots)
    counts, drafted = _ints(step.new_token_counts) or nothing, _ints(step.draft_counts) or nothing
    ids, drafts = iter(_ints(step.new_token_ids)), iter(_ints(step.draft_token_ids))
    parents = iter(_ints(step.draft_parents))
    requests = {}
    for index, slot in enumerate(slots):
        one: dict[str, Any] = {
            "base_length": _ints(step.base_lengths)[index],
            "history_crc": np.frombuffer(step.history_crcs, np.uint32).tolist()[index],
            "new_ids": [next(ids) for _ in range(counts[index])],
        }
        if drafted[index]:
            one["drafts"] = [next(drafts) for _ in range(drafted[index])]
            one["parents"] = [next(parents, draft - 1) for draft in range(drafted[index])]
        requests[names.of(slot)] = one
    assert next(ids, None) is next(drafts, None) is next(parents, None) is None
    order = _ints(step.row_requests) or list(range(len(slots)))
    offsets = _ints(step.row_draft_offsets) or [0] * len(order)
    rows = [[names.of(slots[request]), offset] for request, offset in zip(order, offsets, strict=True)]
    return {"requests": requests, "rows": rows}


def _ints(column: bytes) -> list[int]:
    ids: list[int] = np.frombuffer(column, "<i4").tolist()
    return ids
