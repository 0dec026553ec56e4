"""The committed code is what the .proto files generate, and its Python runs on the oldest and the newest libraries."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
HEADER = Path("core/src/message_fields.h")
STUBS = PROTO / "logitport_proto"
# The oldest grpcio and protobuf that logitport supports, as `make` installs them. The newest run this file.
OLDEST = ROOT / ".venv-proto" / "bin" / "python"


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [OLDEST, PROTO / "generate_package.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    generated = {path.name: path.read_bytes() for path in (tmp_path / "proto/logitport_proto").iterdir()}
    committed = {path.name: path.read_bytes() for path in STUBS.glob("*_pb2*.py*")}
    generated[HEADER.name] = (tmp_path / HEADER).read_bytes()
    committed[HEADER.name] = (ROOT / HEADER).read_bytes()

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


class Language(NamedTuple):
    """Code that protoc generates for a language: one of the files, and the line that declares its package."""

    file: str
    package: str
    plugin: str | None = None  # a binary on the PATH; None if it is part of protoc


LANGUAGES = {
    "cpp": Language("logitport/v1/processing.pb.h", "namespace v1 {"),
    "csharp": Language("Processing.cs", "namespace Logitport.V1 {"),
    "go": Language("logitport/v1/processing.pb.go", "package logitportv1", "protoc-gen-go"),
    "java": Language("logitport/v1/SessionRequest.java", "package logitport.v1;"),
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_protoc_generates(name: str, tmp_path: Path) -> None:
    """Without further options."""
    language = LANGUAGES[name]
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("logitport/v1/*.proto"))
    assert len(sources) == 6
    protoc = shutil.which("protoc")
    if protoc is None or (language.plugin is not None and shutil.which(language.plugin) is None):
        pytest.skip(f"needs protoc{f' and {language.plugin}' if language.plugin else ''}")

    done = subprocess.run(
        [protoc, f"--{name}_out={tmp_path}", *sources], cwd=PROTO, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert language.package in (tmp_path / language.file).read_text().splitlines()


@pytest.mark.slow
def test_buf_lint_passes() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which fetches buf")
    (package,) = re.findall(r"--package=(\S+)", (ROOT / "buf.yaml").read_text())

    done = subprocess.run(
        [npm, "exec", "--yes", f"--package={package}", "--", "buf", "lint"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
