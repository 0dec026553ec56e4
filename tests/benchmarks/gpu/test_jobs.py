"""The jobs, at a tiny size on the CPU: as far as they run without a GPU and without peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks import peer_files
from benchmarks.gpu import bitmask_peers, results
from benchmarks.gpu.job import Job
from benchmarks.gpu.jobs import edits, faults, generation, mix, sampling, temperature
from benchmarks.gpu.results import Line, load
from benchmarks.peers import sglang

from logitport.core.edits import EditKind
from logitport.ops.apply_edits import naive

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def run(module: ModuleType, folder: Path) -> list[Line]:
    module.run(Job(module.__name__.rpartition(".")[2], folder, "cpu", tiny=True))
    return load(folder)


def without_peers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for variable in ("LOGITPORT_SGLANG", "LOGITPORT_VLLM"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(peer_files, "WHEELS", folder)
    monkeypatch.setattr(peer_files, "ROOT", folder)
    sglang.cache_clear()


def assert_correct(lines: list[Line]) -> None:
    checks = [line for line in lines if line.quantity == results.CORRECT]
    assert checks
    assert all(line.met for line in checks), [str(line) for line in checks if not line.met]


def test_edits(tmp_path: Path) -> None:
    lines = run(edits, tmp_path)
    assert_correct(lines)
    assert {results.LISTS, results.MIX_TO_FLOOR} < {line.quantity for line in lines}
    missing = [line.note for line in lines if line.quantity == "not measured"]
    assert "vLLM's kernel needs a GPU" in missing


@pytest.mark.parametrize("name", ["lists", "bitmasks", "mix"])
def test_cases_of_edits(name: str) -> None:
    case = getattr(edits, name)(8, 8000)  # in a small vocabulary, long lists become bitmasks
    kinds = {"lists": {"DENY", "BIAS"}, "bitmasks": {"BITMASK"}, "mix": {"DENY", "BIAS", "BITMASK", "FORCE"}}[name]
    assert {EditKind(kind).name for kind in set(case.kinds.tolist())} == kinds
    assert set(case.rows.tolist()) == set(range(8))
    case.check(8, 8000)


def test_xgrammar_applies_the_same_bitmask() -> None:
    pytest.importorskip("xgrammar")
    words = edits.bitmask_columns(4, 1000)
    found, expected = torch.zeros(4, 1000), torch.zeros(4, 1000)
    bitmask_peers.XGrammar(words, found).apply()
    naive.apply_edits(edits.bitmasks(4, 1000), expected)
    assert torch.equal(found, expected)


def test_a_missing_peer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_peers(monkeypatch, tmp_path)
    job = Job("edits", tmp_path, "cpu", tiny=True)
    with job.case("vLLM"):
        bitmask_peers.import_vllm()
    (line,) = load(tmp_path)
    assert (line.case, line.quantity) == ("vLLM", "not measured")
    assert "make gpu-wheels" in line.note


def test_a_case_that_raises_does_not_end_the_job(tmp_path: Path) -> None:
    job = Job("edits", tmp_path, "cpu", tiny=True)
    with job.case("a case"):
        raise ValueError("deliberately")
    (line,) = load(tmp_path)
    assert line.met is False
    assert "deliberately" in line.note


@pytest.mark.parametrize("module", [mix, sampling])
def test_without_sglang(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_peers(monkeypatch, tmp_path)
    lines = run(module, tmp_path)
    assert {line.quantity for line in lines} == {"not measured"}


def test_temperature(tmp_path: Path) -> None:
    assert {results.PROGRAM_TO_TORCH, results.SERVER_TO_TORCH} < {line.quantity for line in run(temperature, tmp_path)}


def test_faults(tmp_path: Path) -> None:
    assert_correct(run(faults, tmp_path))


def test_generation(tmp_path: Path) -> None:
    lines = run(generation, tmp_path)
    assert_correct(lines)
    assert results.GENERATION in {line.quantity for line in lines}
