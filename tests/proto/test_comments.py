"""Every part of the contract has a comment, and every column's comment names its element type."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-proto" / "bin" / "python"  # has protoc; `make` installs it


class Part(NamedTuple):
    """A message, field, oneof, enum, value, service or method, with its comment."""

    name: str
    descriptor: Any
    comment: str


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Part]:
    output = tmp_path_factory.mktemp("proto") / "contract.binpb"
    protos = [path.relative_to(ROOT / "proto") for path in (ROOT / "proto").glob("logitport/v1/*.proto")]
    options = ["-I.", "--include_source_info", f"--descriptor_set_out={output}"]
    subprocess.run([PYTHON, "-m", "grpc_tools.protoc", *options, *protos], cwd=ROOT / "proto", check=True)
    return [part for file in FileDescriptorSet.FromString(output.read_bytes()).file for part in _parts(file)]


def _parts(file: FileDescriptorProto) -> Iterator[Part]:
    comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}
    yield Part(file.name, file, _first_line_of(file))
    yield from _below(file, (), file.package, comments)


def _first_line_of(file: FileDescriptorProto) -> str:
    text = (ROOT / "proto" / file.name).read_text()
    return text.partition("\n")[0].removeprefix("// ") if text.startswith("// ") else ""


def _below(parent: Any, path: tuple[int, ...], name: str, comments: dict[tuple[int, ...], str]) -> Iterator[Part]:
    """Yield every named part of this descriptor, at any depth. A path has field numbers and indices, as in protoc."""
    for field in parent.DESCRIPTOR.fields:
        children = getattr(parent, field.name)
        if field.message_type is None or "name" not in field.message_type.fields_by_name:
            continue
        if not isinstance(children, Sequence):  # a single message, not a list
            continue
        for index, child in enumerate(children):
            here = (*path, field.number, index)
            child_name = f"{name}.{child.name}"
            yield Part(child_name, child, comments.get(here, ""))
            yield from _below(child, here, child_name, comments)


def test_every_part_of_the_contract_has_a_comment(parts: list[Part]) -> None:
    names = {part.name for part in parts}
    one_of_each = {
        "logitport/v1/common.proto",
        "logitport.v1.Edits",
        "logitport.v1.Edits.rows",
        "logitport.v1.Processor.by",
        "logitport.v1.EditKind",
        "logitport.v1.EditKind.EDIT_KIND_DENY",
        "logitport.v1.LogitProcessing",
        "logitport.v1.LogitProcessing.Session",
    }
    assert one_of_each <= names
    assert [part.name for part in parts if not part.comment.endswith(".")] == [], "a comment is a sentence"


def test_every_bytes_field_describes_its_bytes(parts: list[Part]) -> None:
    """A column names its element type and length, as in int32[rows]; the others are JSON, or counted in bytes."""
    described = re.compile(r"\b(u?int(8|32)|float32)\[[^\]]+\]|\bJSON object\b|\bbytes\b")
    fields = [part for part in parts if isinstance(part.descriptor, FieldDescriptorProto)]
    bytes_fields = [part for part in fields if part.descriptor.type == FieldDescriptorProto.TYPE_BYTES]
    assert bytes_fields
    assert [part.name for part in bytes_fields if not described.search(part.comment)] == []
