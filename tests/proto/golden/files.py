"""The golden files: lists of {name, message, hex, json, columns}, the same message in each form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.message import Message

FOLDER = Path(__file__).parent

# Element types of the columns, by the full names of their fields. `bytes` fields that are not listed hold JSON, logits
# or handles. Those of requests are not listed, because requests are in repeated fields.
COLUMNS = {
    f"logitport.v1.{field}": dtype
    for dtype, fields in {
        "int32": [
            *("Edits.rows", "Edits.offsets", "Edits.ids"),
            *("ApplyResponse.all_denied_rows", "StepEdits.all_denied_rows", "StepLogitsEdited.all_denied_rows"),
            *("RemoveRequests.slots", "RemoveRequests.generations"),
            *("Step.slots", "Step.generations", "Step.base_lengths", "Step.new_token_counts", "Step.new_token_ids"),
            *("Step.row_requests", "Step.row_draft_offsets", "Step.draft_counts", "Step.draft_token_ids"),
            "Step.draft_parents",
            "StepEdits.logits_rows",
        ],
        "uint32": ["Step.history_crcs"],
        "uint8": ["Edits.kinds", "RequestsAdded.reads_logits", "RequestsAdded.pending"],
        "float32": ["Edits.values"],
    }.items()
    for field in fields
}


def message_type(name: str) -> type[Message]:
    """The class of a message, by its full name."""
    return message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))


def to_text(messages: Mapping[str, Message]) -> str:
    """The content of a file."""
    return json.dumps([_entry(name, message) for name, message in messages.items()], indent=1) + "\n"


def load() -> dict[str, dict[str, Any]]:
    """The entries of all files, by file and name."""
    return {
        f"{path.stem}: {entry['name']}": entry
        for path in sorted(FOLDER.glob("*.json"))
        for entry in json.loads(path.read_text())
    }


def columns(message: Message) -> dict[str, dict[str, Any]]:
    """The columns of a message as lists, by path."""
    return {
        path: {"type": dtype, "values": np.frombuffer(column, np.dtype(dtype).newbyteorder("<")).tolist()}
        for path, dtype, column in _columns(message)
    }


def _entry(name: str, message: Message) -> dict[str, Any]:
    return {
        "name": name,
        "message": message.DESCRIPTOR.full_name,
        "hex": message.SerializeToString(deterministic=True).hex(),
        "json": MessageToDict(message, preserving_proto_field_name=True),
        "columns": columns(message),
    }


def _columns(message: Message, prefix: str = "") -> Iterator[tuple[str, str, bytes]]:
    """Path, element type and bytes of each column. No column is inside a repeated field."""
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if field.full_name in COLUMNS:
            yield path, COLUMNS[field.full_name], value
        elif field.message_type is not None and hasattr(value, "ListFields"):
            yield from _columns(value, f"{path}.")
