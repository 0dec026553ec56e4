"""Generate Python code from the .proto files: `python proto/generate.py FOLDER` writes it below FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent


def main(folder: str) -> int:
    """Run protoc with the plugins that lie beside this interpreter; returns its exit status."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    sources = sorted(str(path.relative_to(HERE)) for path in HERE.glob("logitport_proto/*.proto"))
    return int(protoc.main(["protoc", f"-I{HERE}", *outputs, *sources]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
