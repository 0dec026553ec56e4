"""core/install.sh builds the compiled core into the clone, or prints one line and does not fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from logitport.core.compiled import VARIABLE

CORE = Path(__file__).parents[2] / "core"
# Notes its arguments, and fails at a command that the file `fails` names.
PYTHON = """#!/bin/sh
echo "$@" >>calls
case "$*" in *"$(cat fails)"*) echo "an error of the compiler"; exit 1;; esac
case "$*" in *"cmake --install"*) touch core/logitport_core/_core.new.so;; esac
"""


class Checkout:
    """A folder with the script, and a Python that installs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stamp = folder / ".core"
        self.package = folder / "core" / "logitport_core"
        self.package.mkdir(parents=True)
        (self.package / "_core.earlier.so").touch()
        for script in ("install.sh", "build.sh"):
            shutil.copy(CORE / script, folder / "core")
        (folder / "python").write_text(PYTHON)
        (folder / "python").chmod(0o755)
        (folder / "bin").mkdir()
        for tool in ("cat", "dirname", "mkdir", "rm", "sh", "touch"):
            (folder / "bin" / tool).symlink_to(str(shutil.which(tool)))

    def add_compiler(self) -> None:
        (self.folder / "bin" / "c++").symlink_to("/bin/true")

    def install(self, fails: str = "nothing", **variables: str) -> tuple[str, list[str]]:
        """Run the script. Return its output, and the arguments of the calls of Python."""
        (self.folder / "fails").write_text(fails)
        done = subprocess.run(
            [self.folder / "core" / "install.sh", "./python", self.stamp],
            env={"PATH": str(self.folder / "bin"), **variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        calls = self.folder / "calls"
        return done.stdout + done.stderr, calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("variables", [{}, {"CXX": "c++ -m64"}])
def test_it_builds_and_installs(checkout: Checkout, variables: dict[str, str]) -> None:
    checkout.add_compiler()
    output, calls = checkout.install(**variables)
    assert output == "logitport runs the compiled core\n"
    of_cmake = [call.split()[2] for call in calls if call.startswith("-m cmake ")]
    assert of_cmake == ["-S", "--build", "--install"]
    assert (checkout.package / "_core.new.so").exists()
    assert checkout.stamp.exists()


@pytest.mark.parametrize(
    ("options", "compiler", "reason"),
    [
        ({}, False, "no C++ compiler was found; install g++ or clang"),
        ({"CXX": "/nowhere/c++ -m64"}, True, "CXX is '/nowhere/c++ -m64'"),
        ({"fails": "Python.h"}, True, "python3-dev"),
        *(
            ({"fails": command}, True, "see core/build/install.log")
            for command in ("pip install", "cmake -S", "cmake --build", "cmake --install", "logitport_core._core")
        ),
    ],
)
def test_where_it_cannot_be_built_one_line_says_why(
    checkout: Checkout, options: dict[str, str], compiler: bool, reason: str
) -> None:
    if compiler:
        checkout.add_compiler()
    output, calls = checkout.install(**options)
    assert output.startswith("logitport runs in pure Python: ")
    assert reason in output
    assert output.endswith("run make again\n")
    assert output.count("\n") == 1
    assert not checkout.stamp.exists()
    assert not [*checkout.package.iterdir()]  # a core of earlier sources would run
    if "install.log" in reason:
        assert (checkout.folder / "core" / "build" / "install.log").read_text() == "an error of the compiler\n"
    else:
        assert not any("cmake" in call for call in calls)


def test_the_variable_leaves_the_build_out(checkout: Checkout) -> None:
    checkout.add_compiler()
    assert checkout.install(**{VARIABLE: "1"}) == ("", [])
    assert not checkout.stamp.exists()
