"""core/install.sh installs the compiled core, or prints one line and does not fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from logitport.core.compiled import VARIABLE

SCRIPT = Path(__file__).parents[2] / "core" / "install.sh"
# Notes its arguments, and fails at a command that the file `fails` names.
PYTHON = """#!/bin/sh
echo "$@" >>calls
case "$*" in *"$(cat fails)"*) echo "an error of the compiler"; exit 1;; esac
case "$*" in *" wheel "*) mkdir -p core/build/wheels && touch core/build/wheels/logitport_core.whl;; esac
"""


class Checkout:
    """A folder with the script, and a Python that installs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stamp = folder / ".core"
        (folder / "core").mkdir()
        shutil.copy(SCRIPT, folder / "core")
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


def test_it_builds_and_installs(checkout: Checkout) -> None:
    checkout.add_compiler()
    output, calls = checkout.install()
    assert output == "logitport runs the compiled core\n"
    of_pip = [call for call in calls if call.startswith("-m pip ")]
    assert [call.split()[2] for call in of_pip] == ["install", "wheel", "install"]
    assert of_pip[-1].endswith("core/build/wheels/logitport_core.whl")
    assert checkout.stamp.exists()


def test_without_a_compiler_it_prints_one_line(checkout: Checkout) -> None:
    output, calls = checkout.install()
    assert output == (
        "logitport runs in pure Python: no C++ compiler was found; install g++ or clang, and run make again\n"
    )
    assert calls == ["-m pip uninstall -q -y logitport-core"]
    assert not checkout.stamp.exists()


def test_a_compiler_that_does_not_exist_is_named(checkout: Checkout) -> None:
    checkout.add_compiler()
    output, calls = checkout.install(CXX="/nowhere/c++ -m64")
    assert output == (
        "logitport runs in pure Python: CXX is '/nowhere/c++ -m64', which is no command; correct or unset it, and run "
        "make again\n"
    )
    assert calls == ["-m pip uninstall -q -y logitport-core"]
    assert not checkout.stamp.exists()


def test_a_compiler_may_have_arguments(checkout: Checkout) -> None:
    checkout.add_compiler()
    output, _ = checkout.install(CXX="c++ -m64")
    assert output == "logitport runs the compiled core\n"


def test_missing_headers_are_named(checkout: Checkout) -> None:
    checkout.add_compiler()
    output, calls = checkout.install(fails="Python.h")
    assert output == (
        "logitport runs in pure Python: the headers of its Python were not found; install them "
        "(Debian: python3-dev), and run make again\n"
    )
    assert calls[-1] == "-m pip uninstall -q -y logitport-core"
    assert not any(" wheel " in call for call in calls)
    assert not checkout.stamp.exists()


@pytest.mark.parametrize("command", ["pip install", "pip wheel", "logitport_core.whl", "logitport_core._core"])
def test_a_failed_build_leaves_one_line_and_a_log(checkout: Checkout, command: str) -> None:
    checkout.add_compiler()
    output, calls = checkout.install(fails=command)
    assert output == (
        "logitport runs in pure Python: the compiled core could not be built or loaded; see core/build/install.log, "
        "and run make again\n"
    )
    assert (checkout.folder / "core" / "build" / "install.log").read_text() == "an error of the compiler\n"
    assert calls[-1] == "-m pip uninstall -q -y logitport-core"
    assert not checkout.stamp.exists()


def test_the_variable_leaves_the_build_out(checkout: Checkout) -> None:
    checkout.add_compiler()
    assert checkout.install(**{VARIABLE: "1"}) == ("", [])
    assert not checkout.stamp.exists()
