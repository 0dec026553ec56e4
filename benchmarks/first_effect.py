"""Time from `git clone` to a picture of what a processor does: `python -m benchmarks.first_effect`, and `publish`.

Each round has a new clone, a new environment, and a new profile of the browser. The wheels are downloaded
before, and pip has no cache: the network's speed is not measured. The files of the system stay in its page cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import suite
from benchmarks.measure import over_rounds
from benchmarks.records import BarLine
from benchmarks.report import Report
from tests.play.browser import launched

_ROUNDS = 3
_EXTRAS = ".[server,play]"
_BUILD_REQUIREMENTS = ("hatchling", "nanobind>=3.1,<4", "scikit-build-core[hatchling]", "cmake", "ninja")
_MAX_SECONDS = 60.0


def run() -> Report:
    """Measure all rounds."""
    return suite.run({"first effect": _first_effect})


def _first_effect() -> Iterator[BarLine]:
    """The seconds of each part, and of all parts of a round."""
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder, "wheels")
        download = [sys.executable, "-m", "pip", "download", "-q", "-d", str(wheels)]
        pure = {**os.environ, "LOGITPORT_PURE_PYTHON": "1"}  # pip builds to read the metadata
        subprocess.run([*download, _EXTRAS, *_BUILD_REQUIREMENTS], cwd=suite.ROOT, env=pure, check=True)
        seconds = np.array([_round(Path(folder, str(index)), wheels) for index in range(_ROUNDS)])
    parts = (
        "git clone",
        "python -m venv",
        f"installation of '{_EXTRAS}', with the build of the core",
        "logitport play",
    )
    for part, column in zip(parts, seconds.T, strict=True):
        yield BarLine(part, over_rounds(column), unit="s")
    yield BarLine("from the clone to the picture", over_rounds(seconds.sum(axis=1)), _MAX_SECONDS, "s")


def _round(folder: Path, wheels: Path) -> list[float]:
    """Clone, install, and open the page. Returns the seconds of each part."""
    clone, environment = folder / "clone", folder / "venv"
    python = str(environment / "bin" / "python")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    variables["PIP_CONFIG_FILE"] = os.devnull
    install = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "--no-index", "--find-links", str(wheels)]
    times = [time.monotonic()]
    for command, cwd in (
        (["git", "clone", "-q", "--no-local", str(suite.ROOT), str(clone)], None),
        ([sys.executable, "-m", "venv", str(environment)], None),
        ([*install, _EXTRAS], clone),
    ):
        subprocess.run(command, cwd=cwd, env=variables, check=True)
        times.append(time.monotonic())
    _open_page([str(environment / "bin" / "logitport"), "play", "--no-browser"], clone, variables)
    times.append(time.monotonic())
    check = "from logitport.core import compiled; assert compiled.NAME == 'compiled', compiled.describe()"
    subprocess.run([python, "-c", check], env=variables, check=True)
    return np.diff(times).tolist()


def _open_page(command: list[str], folder: Path, variables: dict[str, str]) -> None:
    """Start `logitport play`, and take a picture of its page as soon as an example shows an effect."""
    with subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[-1]
            with launched() as browser:
                page = browser.new_page()
                page.goto(url)
                page.locator(".example .counts").first.wait_for()
                page.screenshot()
        finally:
            process.kill()


if __name__ == "__main__":
    suite.main("first_effect", __doc__, "first_effect", run)
