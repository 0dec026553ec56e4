"""The fixtures of all versions, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stored.decoding import PYTHON

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

VERSIONS = sorted(folder for folder in Path(__file__).parent.iterdir() if (folder / "payloads").is_dir())


def each(pattern: str) -> list[ParameterSet]:
    """Return a parameter for each matching file of each version: its parsed content."""
    files = [(version, file) for version in VERSIONS for file in sorted(version.glob(pattern))]
    assert files, f"no version has {pattern}"
    return [pytest.param(json.loads(file.read_text()), id=f"{version.name}-{file.stem}") for version, file in files]


def skip_other_python(case: dict[str, Any]) -> None:
    """Skip the test if the case has bytecode of another Python minor version."""
    if case["python"] not in ("", PYTHON):
        pytest.skip(f"the payload holds bytecode of Python {case['python']}, which Python {PYTHON} cannot run")
