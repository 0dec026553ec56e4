"""The last part of `make demo`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from examples.picture import BROWSERS, PICTURE
from tests.docs.pages import ROOT
from tests.play.browser import NAMES, executable

if TYPE_CHECKING:
    from pathlib import Path


def end_of_demo(folder: Path, **environment: str) -> str:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "picture.py")]
    options = {"cwd": folder, "env": {**os.environ, **environment}}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True, **options)  # type: ignore[call-overload]
    assert not done.stderr
    return str(done.stdout)


@pytest.mark.skipif(executable() is None, reason="Chromium is not installed: apt-get install chromium")
def test_it_writes_a_picture_of_the_page(tmp_path: Path) -> None:
    assert BROWSERS == NAMES
    output = end_of_demo(tmp_path)
    assert str(tmp_path / PICTURE) in output
    content = (tmp_path / PICTURE).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 50_000  # an empty page has less
    assert [path.name for path in tmp_path.iterdir()] == [PICTURE.name]


def test_without_chromium_it_names_the_command(tmp_path: Path) -> None:
    output = end_of_demo(tmp_path, PATH=str(tmp_path))
    assert output.splitlines() == [output.strip()]
    assert "logitport play" in output
    assert not [*tmp_path.iterdir()]
