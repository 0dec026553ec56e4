"""The parts: every test that is marked `cuda` and every job is in one; the bars are those that jobs record."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import jobs, results
from benchmarks.gpu.results import BARS, Line
from benchmarks.gpu.runner import PARTS

ROOT = Path(__file__).parents[3]
JOBS = [module.name for module in pkgutil.iter_modules(jobs.__path__)]


def test_every_job_is_a_part() -> None:
    assert {part.arguments[2] for part in PARTS if part.arguments[1] == "benchmarks.gpu.job"} == set(JOBS)
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.parametrize("name", JOBS)
def test_jobs_can_be_imported(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.gpu.jobs.{name}").run)


def test_every_file_with_cuda_tests_is_in_a_part() -> None:
    covered = [ROOT / path for part in PARTS for path in part.arguments if path.startswith("tests/")]
    marked = [
        path for path in (ROOT / "tests").rglob("*.py") if re.search(r"^\s*@?.*mark\.cuda\b", path.read_text(), re.M)
    ]
    assert marked
    assert all(any(path == each or each in path.parents for each in covered) for path in marked)
    assert all(path.exists() for path in covered)


def test_every_bar_is_recorded_by_a_job() -> None:
    sources = "".join((ROOT / "benchmarks/gpu").joinpath(f"jobs/{name}.py").read_text() for name in JOBS)
    sources += (ROOT / "benchmarks/gpu/job.py").read_text()
    names = [name for name, value in vars(results).items() if isinstance(value, str) and value in BARS]
    assert len(names) == len(BARS)
    assert all(re.search(rf"\b{name}\b", sources) for name in names)


@pytest.mark.parametrize(
    ("quantity", "value", "met", "verdict"),
    [
        (results.LISTS, 30.0, True, "met"),
        (results.LISTS, 31.0, False, "MISSED"),
        (results.GENERATION, 0.98, False, "MISSED"),
        (results.GENERATION, 1.2, True, "met"),
        ("another", 1.2, None, ""),
    ],
)
def test_verdicts(quantity: str, value: float, met: bool | None, verdict: str) -> None:
    line = Line("part", "case", quantity, value)
    assert (line.met, line.cells[6]) == (met, verdict)


@pytest.mark.parametrize(
    ("arguments", "status", "printed"), [(["--list"], 1, "edits"), (["--only", "x"], 2, "no part")]
)
def test_command(arguments: list[str], status: int, printed: str) -> None:
    command = [sys.executable, "-S", "-m", "benchmarks.gpu", *arguments]  # a GPU machine may lack all packages
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == status
    assert printed in done.stdout + done.stderr
