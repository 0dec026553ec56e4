"""The C++ compiler of this machine, and the options that keep the rules of docs/programs-spec.md."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

# Not -ffast-math: NaN, infinities, and the order of operations remain. An operation that is computed again in a later
# pass must have the same bits, so that multiplications and additions are not contracted. Reductions are reordered
# because of annotations of their loops (-fopenmp-simd, which needs no library).
OPTIONS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp-simd", "-ffp-contract=off"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-fPIC", "-shared", "-nostdlib"),
)
TIMEOUT_SECONDS = 200.0
_NAMES = ("c++", "g++", "clang++")
_MAX_OUTPUT = 500


class CompilerFailed(Exception):
    """There is no compiler, or it has failed."""


class Compiler(NamedTuple):
    """A compiler.

    Attributes:
        command: its path, and arguments of `$CXX`.
        version: the text that it reports.
    """

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler | None:
    """`$CXX`, or the first of `c++`, `g++` and `clang++` in the path; None if there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    for name, *arguments in [named] if named else [[name] for name in _NAMES]:
        path = shutil.which(name)
        if path is not None:
            command = (path, *arguments)
            return Compiler(command, _run([*command, "--version"]))
    return None


def compile_to(compiler: Compiler, source: str, out: Path) -> None:
    """Compile a source to a shared object. Raises CompilerFailed."""
    _run([*compiler.command, *OPTIONS, "-x", "c++", "-", "-o", str(out)], source)


def _run(command: list[str], source: str = "") -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the operator's compiler
            command,
            input=source,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CompilerFailed(f"{command[0]} took longer than {TIMEOUT_SECONDS:g} s") from error
    except OSError as error:
        raise CompilerFailed(f"{command[0]} could not be run: {error}") from error
    if done.returncode:
        raise CompilerFailed(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[:_MAX_OUTPUT]}")
    return done.stdout
