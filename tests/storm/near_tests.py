"""The tests near a module, run until one fails or until they have used too much CPU time."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.storm.server import stat
from tests.tiers import FAST

_POLL_SECONDS = 0.5
_TEST_SECONDS, _WALL_SECONDS = 120, 1800


class Outcome(NamedTuple):
    """What tests make of a changed file.

    Attributes:
        killed: whether a test failed, or the tests took too long.
        by: the first test that failed.
        cpu_seconds: of the tests and their processes.
    """

    killed: bool
    by: str
    cpu_seconds: float


def importing(tree: Path, path: str) -> list[str]:
    """The test files of a tree that import the module at a path."""
    *folders, name = Path(path).with_suffix("").parts[1:]
    package = ".".join(folders)
    pattern = rf"{package}\.{name}\b|from {package} import .*\b{name}\b"
    command = ["git", "grep", "-l", "-E", pattern, "--", "tests/*test_*.py"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False).stdout.split()


def near(tree: Path, path: str, folders: list[str]) -> list[str]:
    """The test files that import the module at a path, and those of these folders, from `tests/`."""
    importers = importing(tree, path)
    files = [file for folder in folders for file in (tree / "tests" / folder).rglob("test_*.py")]
    mirrored = [str(file.relative_to(tree)) for file in files]
    # The likeliest first, because the run ends with the first failure.
    return sorted({*importers, *mirrored}, key=lambda file: (file not in mirrored, file not in importers, file))


def outcome(tree: Path, tests: list[str], cpu_seconds: float, launcher: list[str]) -> Outcome:
    """Run test files of a tree in its own environment, with this limit of the CPU time of all their processes."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "--timeout", str(_TEST_SECONDS), "-m", FAST]
    command = [*launcher, str(tree / ".venv/bin/python"), "-m", "pytest", *options, *tests]
    before, deadline = _children_seconds(), time.monotonic() + _WALL_SECONDS
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, cwd=tree, stdout=output, stderr=output, start_new_session=True)
        late = False
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            late = _session_seconds(process.pid) > cpu_seconds or time.monotonic() > deadline
            if late:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output.read(), re.MULTILINE)
    by = "limit of time" if late else failed[0] if failed else ""
    return Outcome(process.returncode != 0, by, round(_children_seconds() - before, 1))


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _session_seconds(session: int) -> float:
    """CPU seconds of the processes of a session, with their children that have ended."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = stat(int(process.name))
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
