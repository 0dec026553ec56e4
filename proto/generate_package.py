"""Generate code from the .proto files: `python proto/generate_package.py FOLDER`; FOLDER is the repository or a copy.

Writes the Python package `logitport_proto` to FOLDER/proto, and the fields of the messages that the compiled core reads
and writes to FOLDER/core/src/message_fields.h.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor_pb2 import DescriptorProto

HERE = Path(__file__).parent
PACKAGE = Path("proto/logitport_proto")
SOURCES = Path("logitport/v1")
HEADER = Path("core/src/message_fields.h")
CORE_MESSAGES = frozenset(
    {
        *("AddRequests", "AdmittedChain", "Edits", "Error", "Event", "Failure", "LocalTransport", "OpenRegion"),
        *("OpenSession", "Processor", "ProcessorCall", "Region", "RegionOpened", "RemoveRequests", "Request"),
        *("RequestsAdded", "RowsApplied", "SessionOpened", "SessionRequest", "SessionResponse", "SlottedRequest"),
        *("Step", "StepEdits", "StepLogits", "StepLogitsEdited", "Tensor"),
    }
)

# A generated module, in an import or a qualified name. The protobuf package `logitport.v1` in other names stays.
_MODULE_OF_PROTOC = re.compile(r"\blogitport\.v1(?= import \w+_pb2\b|\.\w+_pb2\b)")
# A class of core/src/message_field.h for each type that the core reads and writes. Other types raise a KeyError.
_CLASSES = {
    FieldDescriptorProto.TYPE_BOOL: "VarintField",
    FieldDescriptorProto.TYPE_ENUM: "VarintField",
    FieldDescriptorProto.TYPE_FLOAT: "FloatField",
    FieldDescriptorProto.TYPE_INT32: "VarintField",
    FieldDescriptorProto.TYPE_INT64: "VarintField",
    FieldDescriptorProto.TYPE_UINT64: "VarintField",
    FieldDescriptorProto.TYPE_BYTES: "BytesField",
    FieldDescriptorProto.TYPE_STRING: "BytesField",
    FieldDescriptorProto.TYPE_MESSAGE: "BytesField",
}
_HEADER = """\
// Fields of the messages that the core reads and writes. Generated from proto/logitport/v1: run `make proto`.
#pragma once

#include "message_field.h"

namespace logitport::fields {{
{}

}}  // namespace logitport::fields
"""


def main(folder: str) -> int:
    """Generate into FOLDER; returns the exit status of protoc."""
    with tempfile.TemporaryDirectory() as temporary:
        descriptors = Path(temporary, "descriptors")
        status = _generate(temporary, descriptors)
        if status == 0:
            _move(Path(temporary, SOURCES), Path(folder, PACKAGE))
            _write_header(descriptors, Path(folder, HEADER))
    return status


def _generate(folder: str, descriptors: Path) -> int:
    """Run protoc with the plugins that are installed beside this interpreter."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    sources = sorted(str(path.relative_to(HERE)) for path in (HERE / SOURCES).glob("*.proto"))
    return int(protoc.main(["protoc", f"-I{HERE}", f"--descriptor_set_out={descriptors}", *outputs, *sources]))


def _move(generated: Path, package: Path) -> None:
    """Move the modules into the package and correct their imports.

    protoc derives the Python package from the path of the .proto file and has no option for another one. `logitport` is
    the import name of the SDK.
    """
    package.mkdir(parents=True, exist_ok=True)
    for path in generated.iterdir():
        (package / path.name).write_text(_MODULE_OF_PROTOC.sub(PACKAGE.name, path.read_text()))


def _write_header(descriptors: Path, header: Path) -> None:
    """Write a struct with the fields of each message of the core."""
    files = FileDescriptorSet.FromString(descriptors.read_bytes()).file
    messages = {message.name: message for file in files for message in file.message_type}
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(_HEADER.format("\n".join(_struct(messages[name]) for name in sorted(CORE_MESSAGES))))


def _struct(message: DescriptorProto) -> str:
    return "\n".join(("", f"struct {message.name} {{", *_fields(message), "};"))


def _fields(message: DescriptorProto) -> Iterator[str]:
    for field in message.field:
        is_packed_list = field.label == field.LABEL_REPEATED and _CLASSES[field.type] == "VarintField"
        name = "BytesField" if is_packed_list else _CLASSES[field.type]
        yield f"  static constexpr {name} {field.name}{{{field.number}}};"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
