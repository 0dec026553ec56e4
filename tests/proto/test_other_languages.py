"""protoc generates code for other languages from the .proto files without further options."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

PROTO = Path(__file__).parents[2] / "proto"
SOURCES = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("logitport/v1/*.proto"))


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
    language = LANGUAGES[name]
    protoc = shutil.which("protoc")
    if protoc is None or (language.plugin is not None and shutil.which(language.plugin) is None):
        pytest.skip(f"needs protoc{f' and {language.plugin}' if language.plugin else ''}")

    done = subprocess.run(
        [protoc, f"--{name}_out={tmp_path}", *SOURCES], cwd=PROTO, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert language.package in (tmp_path / language.file).read_text().splitlines()


def test_protoc_has_sources() -> None:
    assert [Path(source).stem for source in SOURCES] == [
        "admin",
        "common",
        "processing",
        "program",
        "recording",
        "registry",
    ]
