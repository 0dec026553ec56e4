"""Runs parts one after the other, each in a process group of its own that is killed at its time limit.

Their order is that of their value: a run that is cut off has the first ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from benchmarks.gpu.results import LOG, Line, append, load, write_table

RESULTS_VARIABLE = "GPU_RESULTS"
_LEAST_SECONDS = 5.0  # a part with less is not begun
_TERM_SECONDS = 3.0
_TAIL_BYTES = 1500

# The tests' own configuration makes a warning an error. Here a warning of another torch must not hide a result.
_LENIENT = ("-W", "default", "-o", "timeout=120")
_TESTS = ("-m", "pytest", "-m", "cuda", "-v", "-rfEs", "-p", "no:cacheprovider", "--tb=short", *_LENIENT)
_END_TO_END = ("end_to_end/test_cuda_in_place.py", "end_to_end/test_cuda_scope.py")


class Part(NamedTuple):
    """A process of the run.

    Attributes:
        name: for `--only`.
        seconds: the limit of its time.
        arguments: of the Python interpreter.
        does: one line for `--list`.
    """

    name: str
    seconds: float
    arguments: tuple[str, ...]
    does: str


def _job(name: str, seconds: float, does: str) -> Part:
    return Part(name, seconds, ("-m", "benchmarks.gpu.job", name), does)


def _tests(name: str, seconds: float, *paths: str) -> Part:
    return Part(name, seconds, (*_TESTS, *(f"tests/{path}" for path in paths)), f"pytest -m cuda {' '.join(paths)}")


PARTS = (
    _tests("test-ops", 120, "client/ops", "client/core/test_token_ids.py"),
    _tests("test-end-to-end", 200, *_END_TO_END),
    _tests("test-server", 60, "server/session/test_session_steps.py", "server/dialects/transformers/test_own.py"),
    _job("edits", 120, "the kernel of edits, against moving the bytes, xgrammar and vLLM"),
    _job("mix", 90, "the mix of three built-ins against SGLang's processors in process, 4k and 32k ids"),
    _job("temperature", 60, "a temperature on all rows, as a program and through the server, against torch"),
    _job("faults", 90, "workers that break CUDA: a bad index, an endless kernel, no memory"),
    _job("generation", 120, "a transformers model with random weights, with and without the hook"),
    _job("sampling", 75, "SGLang's sampler with its own processors, and with the hook"),
    Part("bench-cuda", 150, ("-m", "benchmarks.cuda"), "steps in place, through pinned memory, and in SGLang"),
)


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
        started, known = time.monotonic(), len(load(self._folder))
        with Path(self._folder, LOG).open("ab+") as log:
            log.write(f"\n=== {part.name}\n".encode())
            log.flush()
            begin = log.tell()
            status = _run_group([*self._python, *part.arguments], log, self._environment, limit)
            log.seek(max(begin, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = log.read().decode(errors="replace").splitlines()
        seconds = time.monotonic() - started
        for line in load(self._folder)[known:]:
            print(line)
        if status != 0:
            print("".join(f"  | {line}\n" for line in tail), end="")
        ended = "ended" if status == 0 else f"killed after {limit:.0f} s" if status is None else f"status {status}"
        # The last line of pytest counts the tests that passed, failed and were skipped.
        self._record(Line(part.name, "part", ended, seconds, "s", note=tail[-1].strip("= ") if tail else ""))
        write_table(self._folder)
        return status == 0

    def _record(self, line: Line) -> None:
        append(self._folder, line)
        print(line, flush=True)


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
