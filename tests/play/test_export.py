"""Exported tests: they run, pass, and fail when the processor changes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from logitport import InvalidArgument
from logitport_play.export import export_test
from logitport_play.models import open_models
from logitport_play.runs import ChosenProcessor, Runs, RunSpec
from logitport_play.watched_files import Files
from tests.play.conftest import FILE, SPEC

if TYPE_CHECKING:
    from pathlib import Path

    from tests.play.conftest import Client

CHAIN = [
    {"processor": "my.py:Boost", "params": {"bias": 2.5}},
    {"processor": "no_repeat_ngram", "params": {"ngram_size": 2}},
    {"processor": "my.py:flatter", "params": {"strength": 0.8}},
]


def exported(client: Client, **spec: Any) -> str:
    status, answer = client.post("export", {**SPEC, "chain": CHAIN, **spec})
    assert status == 200, answer
    return str(answer["code"])


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_play.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_the_code(client: Client) -> None:
    code = exported(client, forced={"1": 9}, steps=5)
    assert "from my import Boost, flatter\n" in code
    assert "from logitport_testing import StoryModel, simulate\n" in code
    assert '(Boost, {"bias": 2.5})' in code.replace("'", '"')
    assert "OUTPUT = [None, 9]\n" in code
    assert "def test_boost_then_no_repeat_ngram_then_flatter():" in code
    assert 'on_error="abort"' in code.replace("'", '"')
    assert "Save it beside my.py" in code
    compile(code, "test_play.py", "exec")
    without = exported(client, chain=[], steps=0)
    assert "CHAIN = []\n" in without
    assert "OUTPUT = []\n" in without
    compile(without, "test_play.py", "exec")


@pytest.mark.slow
def test_the_exported_test_passes(client: Client, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(FILE)
    (tmp_path / "test_play.py").write_text(exported(client, forced={"1": 9}, steps=24))
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    (tmp_path / "my.py").write_text(FILE.replace("edits.bias([9]", "edits.bias([39]"))
    done = run(tmp_path)
    assert done.returncode == 1
    assert "1 failed" in done.stdout


@pytest.mark.slow
def test_a_run_with_failures_can_be_exported(client: Client, tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(FILE)
    code = exported(client, chain=[{"processor": "my.py:Fails"}, *CHAIN[1:]], steps=5)
    assert "on_error='isolate'" in code
    (tmp_path / "test_play.py").write_text(code)
    assert run(tmp_path).returncode == 0


def test_a_file_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "my-file.py").write_text(FILE)
    files = Files([tmp_path / "my-file.py"])
    runs = Runs(open_models([]), files)
    spec = RunSpec("a", "story", "Once", [ChosenProcessor("my-file.py:Boost", {"bias": 1.0})], 1)
    with pytest.raises(InvalidArgument, match=r"my-file\.py cannot be imported by a test"):
        export_test(spec, runs, files)
    runs.close()
