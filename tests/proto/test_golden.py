"""The golden files hold messages that every implementation encodes and decodes in the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from logitport_proto import common_pb2, processing_pb2, recording_pb2, registry_pb2
from tests.proto.golden import files
from tests.proto.golden.messages import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

ENTRIES = files.load()


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())
def test_decoding_and_encoding(entry: dict[str, Any]) -> None:
    cls = files.message_type(entry["message"])
    message = cls.FromString(bytes.fromhex(entry["hex"]))
    assert MessageToDict(message, preserving_proto_field_name=True) == entry["json"]
    assert files.columns(message) == entry["columns"]
    assert ParseDict(entry["json"], cls()).SerializeToString(deterministic=True).hex() == entry["hex"]


def test_files_match_the_messages() -> None:
    """Otherwise run `python -m tests.proto.golden`."""
    assert {path.stem for path in files.FOLDER.glob("*.json")} == set(GOLDEN)
    for file, messages in GOLDEN.items():
        assert (files.FOLDER / f"{file}.json").read_text() == files.to_text(messages), file


def test_every_field_of_the_contract_is_set_in_a_message() -> None:
    contract = {
        field.full_name
        for module in (common_pb2, processing_pb2, recording_pb2, registry_pb2)
        for message in module.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
    golden = {name for messages in GOLDEN.values() for message in messages.values() for name in _fields_in(message)}

    assert sorted(contract - golden) == []
    assert set(files.COLUMNS) <= contract


def _fields_in(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        yield field.full_name
        if field.message_type is not None:
            for one in [value] if hasattr(value, "ListFields") else value:
                yield from _fields_in(one)
