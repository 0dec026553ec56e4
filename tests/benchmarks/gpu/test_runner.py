"""The runner of `python -m benchmarks.gpu`, with parts that fail in all ways."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING

from benchmarks.gpu.results import LINES, LOG, TABLE, Line, append, load
from benchmarks.gpu.runner import Part, Runner

from tests.storm.server import Process
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RECORDS = """
import os
from pathlib import Path
from benchmarks.gpu.results import Line, append
append(Path(os.environ["GPU_RESULTS"]), Line({name!r}, "case", "quantity", 3.0, "µs"))
"""


def part(name: str, code: str, seconds: float = 60.0) -> Part:
    return Part(name, seconds, ("-c", RECORDS.format(name=name) + textwrap.dedent(code)), "")


def run(folder: Path, *parts: Part, seconds: float = 120.0) -> bool:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return Runner(folder, seconds, [sys.executable], environment).run(parts)


def endings(folder: Path) -> dict[str, str]:
    return {line.part: line.quantity for line in load(folder) if line.case == "part"}


def test_a_part_that_fails_does_not_stop_the_next_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = {
        "raises": "raise ValueError('deliberately')",
        "exits": "raise SystemExit(7)",
        "crashes": "os.abort()",
        "is killed": "os.kill(os.getpid(), 9)",
    }
    assert not run(tmp_path, *(part(name, code) for name, code in bad.items()), part("last", ""))
    found = endings(tmp_path)
    assert found == {
        "raises": "status 1",
        "exits": "status 7",
        "crashes": "status -6",
        "is killed": "status -9",
        "last": "ended",
    }
    assert [line.part for line in load(tmp_path) if line.value == 3.0] == [*bad, "last"]
    assert "deliberately" in (tmp_path / LOG).read_text()
    assert "deliberately" in capfd.readouterr().out


def test_a_part_that_hangs_is_killed_with_its_children_and_keeps_its_results(tmp_path: Path) -> None:
    hangs = """
    import signal, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.path.join(os.environ["GPU_RESULTS"], "pid"), "w").write(str(child.pid))
    time.sleep(600)
    """
    assert not run(tmp_path, part("hangs", hangs, 4.0), part("last", ""))
    assert endings(tmp_path) == {"hangs": "killed after 4 s", "last": "ended"}
    assert [line.part for line in load(tmp_path) if line.value == 3.0] == ["hangs", "last"]
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: Process.of(pid) is None)


def test_parts_for_which_no_time_is_left_are_named(tmp_path: Path) -> None:
    assert not run(tmp_path, part("never", ""), seconds=1.0)
    assert endings(tmp_path) == {"never": "not begun"}


def test_results_are_a_table_after_each_part(tmp_path: Path) -> None:
    assert run(tmp_path, part("first", ""), part("second", ""))
    table = (tmp_path / TABLE).read_text().splitlines()
    assert table[0].startswith("| part | case | quantity | value |")
    assert "| first | case | quantity | 3 µs |" in table[2]
    assert all(row.count("|") == table[0].count("|") for row in table)


def test_a_result_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    append(tmp_path, Line("a", "b", "c", 1.0))
    with (tmp_path / LINES).open("a") as file:
        file.write('{"part": "a", "ca')
    assert load(tmp_path) == [Line("a", "b", "c", 1.0)]


def test_the_last_line_of_the_output_is_noted(tmp_path: Path) -> None:
    """In the tests' case it counts them."""
    file = tmp_path / "test_some.py"
    file.write_text("def test_good():\n    pass\n\n\ndef test_bad():\n    raise AssertionError\n")
    alone = ("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path))
    tests = Part("tests", 60.0, ("-m", "pytest", *alone, str(file)), "")
    assert not run(tmp_path / "results", tests)
    (line,) = load(tmp_path / "results")
    assert line.quantity == "status 1"
    assert "1 failed, 1 passed" in line.note
