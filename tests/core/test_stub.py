"""The stub of the compiled core, which mypy reads, has the types of the compiled core."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from logitport.core import compiled

STUB = Path(__file__).parents[2] / "core" / "logitport_core" / "_core.pyi"


@pytest.mark.skipif(compiled.core is None, reason=f"the compiled core does not run: {compiled.REASON}")
@pytest.mark.skipif(importlib.util.find_spec("nanobind") is None, reason="nanobind makes the stub; it is not installed")
def test_the_stub_is_what_the_generator_makes(tmp_path: Path) -> None:
    made = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "logitport_core._core", "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert STUB.read_text() == made.read_text(), "run `make core-stub`"
