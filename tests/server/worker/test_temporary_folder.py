"""The folder for temporary files of processes that may be killed at their start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from logitport_server.worker.temporary_folder import choose_temporary_folder

if TYPE_CHECKING:
    from pathlib import Path

_PRINTS_CREATED_FILES = """
import os, sys
def report(event, arguments):
    if event == "open" and str(arguments[0]).startswith(os.environ["TMPDIR"]):
        print(arguments[0])
sys.addaudithook(report)
"""
_WORKERS = """
from logitport_server.worker.worker_zygote import _preload
_preload(())
"""
_PRINCIPALS = """
from logitport_server.config import ServerConfig
from logitport_server.front_door.setups import setup_of
from logitport_server.principal_process.preload import preload
preload(setup_of(ServerConfig(device="cpu")))
"""


@pytest.mark.parametrize("zygote", [_WORKERS, _PRINCIPALS], ids=["workers", "principals"])
def test_a_zygote_that_starts_creates_no_file(zygote: str, tmp_path: Path) -> None:
    """A killed one would leave it: dill tries the folder for temporary files with a file in it."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", _PRINTS_CREATED_FILES + zygote],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


def test_the_first_variable_with_a_folder_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    monkeypatch.setenv("TEMP", str(tmp_path))
    choose_temporary_folder()
    assert tempfile.gettempdir() == str(tmp_path)


def test_without_a_folder_python_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    choose_temporary_folder()
    assert tempfile.tempdir is None
