"""Runs parts one after the other, each in a process group of its own that is killed at its time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from benchmarks.gpu.results import LOG, Line, append, load, write_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.gpu.parts import Part

RESULTS_VARIABLE = "GPU_RESULTS"
_LEAST_SECONDS = 5.0  # a part with less is not begun
_TERM_SECONDS = 3.0
_TAIL_BYTES = 1500
_NAMED_FAILURES = 40
_MESSAGE = 300


class Runner:
    """A run.

    Args:
        folder: where the results go.
        seconds: the limit of the whole run.
        python: the command of the interpreter that runs the parts.
        environment: of the parts.
    """

    def __init__(self, folder: Path, seconds: float, python: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._deadline = time.monotonic() + seconds
        self._python = python
        self._environment = {**environment, RESULTS_VARIABLE: str(folder), "PYTHONUNBUFFERED": "1"}
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, parts: Sequence[Part]) -> bool:
        """Run all parts. A part that fails or is killed does not stop the next one. Returns whether all succeeded."""
        succeeded = [self._run(part) for part in parts]
        return all(succeeded)

    def _run(self, part: Part) -> bool:
        limit = min(part.seconds, self._deadline - time.monotonic())
        if limit < _LEAST_SECONDS and limit < part.seconds:
            self._record(Line(part.name, "part", "not begun", note="no time is left"))
            return False
        report = self._folder / f".{part.name}.xml"
        arguments = (*part.arguments, f"--junitxml={report}") if part.is_test else part.arguments
        started, known = time.monotonic(), len(load(self._folder))
        with Path(self._folder, LOG).open("ab") as log:
            log.write(f"\n=== {part.name}\n".encode())
            log.flush()
            begin = log.tell()
            status = _run_group([*self._python, *arguments], log, self._environment, limit)
        seconds = time.monotonic() - started
        for line in load(self._folder)[known:]:
            print(line)
        if part.is_test:
            self._record_tests(part.name, report)
        if status != 0:
            self._print_log(begin)
        ended = "ended" if status == 0 else f"killed after {limit:.0f} s" if status is None else f"status {status}"
        self._record(Line(part.name, "part", ended, seconds, "s"))
        write_table(self._folder)
        return status == 0

    def _record(self, line: Line) -> None:
        append(self._folder, line)
        print(line, flush=True)

    def _print_log(self, begin: int) -> None:
        """Print the end of the log since a position."""
        with Path(self._folder, LOG).open("rb") as log:
            log.seek(max(begin, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            print("".join(f"  | {line}\n" for line in log.read().decode(errors="replace").splitlines()), end="")

    def _record_tests(self, name: str, report: Path) -> None:
        """Record pytest's counts and its failures. A pytest that was killed has written none."""
        if not report.exists():
            self._record(Line(name, "tests", "no report", note=f"pytest did not end; {LOG} has its output"))
            return
        suites = list(ET.parse(report).getroot().iter("testsuite"))
        report.unlink()
        for count in ("tests", "failures", "errors", "skipped"):
            self._record(Line(name, "tests", count, sum(int(suite.get(count, "0")) for suite in suites)))
        bad = [(case, result) for case in suites for case, result in _bad_cases(case)]
        for case, message in bad[:_NAMED_FAILURES]:
            self._record(Line(name, case, "failed", note=message[:_MESSAGE]))


def _bad_cases(suite: ET.Element) -> list[tuple[str, str]]:
    return [
        (f"{case.get('classname')}::{case.get('name')}", result.get("message") or "")
        for case in suite.iter("testcase")
        for result in case
        if result.tag in {"failure", "error"}
    ]


def _run_group(command: Sequence[str], log: BinaryIO, environment: Mapping[str, str], seconds: float) -> int | None:
    """Run a command with its output in the log. Returns its status; None if it was killed.

    All processes of its group are killed at the end: servers that a killed benchmark has left would slow the next part.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
