"""Generate the Python package `logitport_proto`: `python proto/generate.py FOLDER` writes it to FOLDER."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent
PACKAGE = "logitport_proto"
SOURCES = Path("logitport/v1")

# A generated module, in an import or a qualified name. The protobuf package `logitport.v1` in other names stays.
_MODULE_OF_PROTOC = re.compile(r"\blogitport\.v1(?= import \w+_pb2\b|\.\w+_pb2\b)")


def main(folder: str) -> int:
    """Generate into FOLDER/logitport_proto; returns the exit status of protoc."""
    with tempfile.TemporaryDirectory() as temporary:
        status = _generate(temporary)
        if status == 0:
            _move(Path(temporary, SOURCES), Path(folder, PACKAGE))
    return status


def _generate(folder: str) -> int:
    """Run protoc with the plugins that are installed beside this interpreter."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    sources = sorted(str(path.relative_to(HERE)) for path in (HERE / SOURCES).glob("*.proto"))
    return int(protoc.main(["protoc", f"-I{HERE}", *outputs, *sources]))


def _move(generated: Path, package: Path) -> None:
    """Move the modules into the package and correct their imports.

    protoc derives the Python package from the path of the .proto file and has no option for another one. `logitport` is
    the import name of the SDK.
    """
    package.mkdir(parents=True, exist_ok=True)
    for path in generated.iterdir():
        (package / path.name).write_text(_MODULE_OF_PROTOC.sub(PACKAGE, path.read_text()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
