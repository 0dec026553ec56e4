"""Programs are compiled by another process. Whatever fails there, the interpreter goes on."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import pytest
import torch

from logitport.errors import InvalidArgument
from logitport.programs.fused import build, check, compiler, fusing
from logitport.programs.fused.fusing import Fusing
from logitport.programs.runtime.runner import Runner
from logitport.session.program_runs import ProgramRuns
from tests.client.programs.fused.compiled import compiled, needs_compiler
from tests.client.programs.runtime.build import entropy_gate, min_p, temperature, top_k
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from logitport.programs.verifier import Verified

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are compiled on Linux")
SECONDS = 100


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def is_running(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def script(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


@needs_compiler
def test_the_interpreter_runs_until_the_program_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    programs, logits = Fusing(), torch.randn(3, 5000)
    runner, expected = Runner(compiled=programs), logits.clone()
    Runner().apply(min_p(), expected, range(3), [{"min_p": 0.1}] * 3)
    for _ in range(2):
        result = logits.clone()
        runner.apply(min_p(), result, range(3), [{"min_p": 0.1}] * 3)
        assert torch.equal(result, expected)
        assert programs.wait(SECONDS)
    assert programs.find(min_p(), logits, 1) is not None
    assert [record.message for record in caplog.records if "is compiled" in record.message]


@needs_compiler
def test_an_object_that_is_damaged_is_built_again(folder: Path) -> None:
    first = build.build(temperature().program.to_bytes())["path"]
    with open(first, "r+b") as file:
        file.truncate(100)
    again = build.build(temperature().program.to_bytes())["path"]
    assert os.path.getsize(again) > 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo no; exit 3", "ended with 3"),
        ('[ "$1" = --version ] || kill -SEGV $$', "ended with -11"),
        (": writes nothing", "program.so"),
    ],
)
def test_a_compiler_that_fails_leaves_the_interpreter(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, expected: str
) -> None:
    monkeypatch.setenv("CXX", script(folder, text))
    programs, logits = Fusing(), torch.randn(3, 500)
    for _ in range(3):
        Runner(compiled=programs).apply(min_p(), logits, range(3), [{"min_p": 0.1}] * 3)
        assert programs.wait(SECONDS)
    assert programs.find(min_p(), logits, 1) is None
    (record,) = caplog.records
    assert "LOGITPORT_FUSE" in record.message
    assert expected in record.message


def test_without_a_compiler_one_line_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    programs, logits = Fusing(), torch.randn(3, 500)
    for verified in (min_p(), entropy_gate(), temperature()):
        assert programs.find(verified, logits, 1) is None
        assert programs.wait(SECONDS)
    (record,) = caplog.records
    assert "there is no C++ compiler" in record.message


def test_a_compiler_that_hangs_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setenv("CXX", script(folder, "exec sleep 1000"))
    with pytest.raises(compiler.CompilerFailed, match="longer than"):
        compiler.find_compiler()


def test_a_process_that_hangs_is_ended_with_its_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fusing, "_TIMEOUT_SECONDS", 3.0)
    monkeypatch.setenv("CXX", script(folder, f"echo $$ > {folder}/pid; exec sleep 1000"))
    programs = Fusing()
    programs.find(min_p(), torch.randn(3, 500), 1)
    assert programs.wait(SECONDS)
    (record,) = caplog.records
    assert "longer than" in record.message
    if (folder / "pid").exists():  # else the process was ended before
        wait_until(lambda: not is_running((folder / "pid").read_text().strip()))  # a killed process ends a little later


@needs_compiler
def test_a_compiled_program_with_another_result_is_not_stored(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(build, "source_of", lambda _: build_source().replace("n0 / n", "n0 * n"))
    with pytest.raises(check.WrongResult):
        build.build(temperature().program.to_bytes())
    assert not list(folder.rglob("*.so"))


def build_source() -> str:
    from logitport.programs.fused.phases import phases_of
    from logitport.programs.fused.source import source_of

    return source_of(phases_of(temperature()))


@needs_compiler
@pytest.mark.parametrize("make", [min_p, entropy_gate, temperature])
def test_a_correct_program_passes_the_check(make: Callable[[], Verified]) -> None:
    check.check(make(), compiled(make()))


def test_programs_of_other_operators_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Fusing()
    monkeypatch.setattr(programs, "_build", lambda data: pytest.fail("a process is started"))
    assert programs.find(top_k(), torch.randn(3, 500), 1) is None
    assert programs.find(min_p(), torch.randn(3, 500).half(), 1) is None
    assert programs.wait(SECONDS)
    assert not programs._requested


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "off"):
        monkeypatch.setenv(fusing.VARIABLE, value)
        assert fusing.of_environment() is None
    monkeypatch.setenv(fusing.VARIABLE, "on")
    assert fusing.of_environment() is fusing.of_environment() is not None
    assert ProgramRuns()._runner(torch.zeros(1, 3))._compiled is fusing.of_environment()
    monkeypatch.setenv(fusing.VARIABLE, "yes")
    with pytest.raises(InvalidArgument, match="LOGITPORT_FUSE"):
        ProgramRuns()
