"""A virtual environment for one test, and what a wheel says of itself."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from email.policy import default
from typing import TYPE_CHECKING

from tests.packaging.conftest import ROOT

if TYPE_CHECKING:
    from email.message import EmailMessage
    from pathlib import Path

    from tests.packaging.conftest import Distributions

# A hang is bounded only: an installation that compiles the core takes minutes on a busy machine.
SECONDS = 800
TEST_SECONDS = SECONDS + 100


def metadata(distributions: Distributions) -> EmailMessage:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser(policy=default).parsestr(wheel.read(name).decode())  # type: ignore[return-value]


class Environment:
    """A bare virtual environment, which has not even pip: that of this Python installs into it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self._python = str(folder / "bin" / "python")
        self._folder = folder

    def install(self, *requirements: str) -> str:
        # To compile all packages takes longer than to compile the imported ones.
        command = [sys.executable, "-m", "pip", "--python", self._python, "install", "-q", "--no-compile"]
        return self._run(*command, "-c", str(ROOT / "constraints.txt"), *requirements)

    def python(self, code: str) -> str:
        return self._run(self._python, "-I", "-W", "error", "-c", code)

    def command(self, *arguments: str) -> str:
        return self._run(str(self._folder / "bin" / "logitport"), *arguments)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
