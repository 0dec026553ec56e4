"""The committed stubs are what the .proto files generate, and run on the oldest and the newest libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
STUBS = PROTO / "logitport_proto"
# The oldest grpcio and protobuf that logitport supports, as `make` installs them. The newest run this file.
OLDEST = ROOT / ".venv-proto" / "bin" / "python"


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    done = subprocess.run([OLDEST, PROTO / "generate.py", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    generated = {path.name: path.read_bytes() for path in (tmp_path / "logitport_proto").iterdir()}
    committed = {path.name: path.read_bytes() for path in STUBS.glob("*_pb2*.py*")}

    assert sorted(committed) == sorted(generated)
    assert [name for name in generated if generated[name] != committed[name]] == [], "run `make proto`"


@pytest.mark.parametrize("python", [OLDEST, Path(sys.executable)], ids=["oldest", "newest"])
def test_stubs_import_without_a_warning(python: Path) -> None:
    modules = sorted(path.stem for path in STUBS.glob("*_pb2*.py"))
    statements = "; ".join(f"import logitport_proto.{module}" for module in modules)

    done = subprocess.run(
        [python, "-W", "error", "-c", statements], cwd=PROTO, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
