"""One block of `make hostile` with every attacker. The assertions do not depend on the speed of the machine."""

from __future__ import annotations

import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.hostile import report
from benchmarks.hostile.attackers import ATTACKERS, calls, frames
from benchmarks.hostile.blocks import attack
from benchmarks.hostile.report import Block, Comparison, Plan
from benchmarks.hostile.servers import Usage
from benchmarks.machine import describe
from benchmarks.report import load, save

from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PLAN = Plan(blocks=1, steps=30, least_seconds=1.0, seconds=15.0)
# The server's default limits.
MAX_WORKERS, MAX_CONNECTIONS = 64, 1024
# Connections; a worker's socket and pidfd, also of one that is being replaced; sessions, files, event loops.
MAX_DESCRIPTORS = MAX_CONNECTIONS + 2 * 2 * MAX_WORKERS + 128
MAX_SERVER_BYTES = 1 << 30
MAX_METRICS_BYTES = 2 << 20
# They run no code in workers, so only the innocent engine has any.
WITHOUT_WORKERS = {each.name for each in (*calls.ATTACKERS, *frames.ATTACKERS)}
BLOCK = Block(30, 0.002, 0.004, 0.008, 0.1, 0.02, 100, 0, 0, 1.0, 0.1)


def cases() -> Iterator[Any]:
    """Every attacker over one transport, in turn; evenly chosen ones where a run has fewer examples."""
    every = len(ATTACKERS) // examples(len(ATTACKERS))
    for name, transport in [*zip(ATTACKERS, cycle(["local", "grpc"]), strict=False)][::every]:
        yield pytest.param(name, transport, id=f"{name}, {transport}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "transport"), list(cases()))
def test_an_innocent_engine_is_served_during(name: str, transport: str) -> None:
    found = attack(name, transport, PLAN)
    assert not found.ended
    assert not found.errors
    assert (found.wrong, found.lost) == (0, 0)
    assert len(found.attacked) == PLAN.blocks
    assert all(block.steps for block in found.attacked)
    assert all(block.answered for block in found.attacked)
    assert found.growth.descriptors <= MAX_DESCRIPTORS
    assert found.growth.workers <= 2 * MAX_WORKERS
    assert found.growth.server_bytes <= MAX_SERVER_BYTES
    assert found.metrics_bytes <= MAX_METRICS_BYTES
    if name in WITHOUT_WORKERS:
        assert found.workers_lost == 0


def test_results_are_saved_loaded_and_published(tmp_path: Path) -> None:
    slow = BLOCK._replace(p50=0.004, longest=0.016, stall=0.5, wrong=1, lost=2)
    found = Comparison("chains", "grpc", [BLOCK], [slow], Usage(1_000_000, 2_000_000, 3, 4))
    assert report.texts(tmp_path) == {"hostile": ""}
    ended = Comparison("chains", "grpc", ended=True, errors=["it has ended"])  # before the first block
    assert report.cells(ended)[0] == "chains (the server ended)"
    assert "it has ended" in report.line(ended)
    run = report.HostileReport(describe(), "2026-01-01 00:00", plan=PLAN, comparisons=[found])
    save(run, tmp_path)
    assert load(tmp_path, report.HostileReport) == [run]
    (line,) = [line for line in report.texts(tmp_path)["hostile"].splitlines() if "chains" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        *("chains", "grpc", "2.00", "2.00 to 2.00", "1.00", "2.00", "16 ms", "500 ms", "20 ms"),
        *("+1 MB", "+2 MB", "+3", "1", "2"),
    ]


def test_the_attackers_are_listed() -> None:
    command = [sys.executable, "-m", "benchmarks.hostile", "list"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stderr
    assert listed.splitlines() == [f"{name}: {attacker.does}" for name, attacker in ATTACKERS.items()]
