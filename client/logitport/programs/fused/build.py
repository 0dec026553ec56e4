"""The process that finds, or compiles and checks, the shared object of one program. The engine waits for none of it.

It does not import torch, which would take most of its time.

It reads the program from its standard input, and writes one JSON object: the path of the shared object, or an error.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from logitport.programs.fused import cache
from logitport.programs.fused.compiler import CompilerFailed, compile_to, find_compiler
from logitport.programs.fused.native import Native
from logitport.programs.fused.nodes import NotFusible
from logitport.programs.fused.phases import phases_of
from logitport.programs.fused.source import source_of
from logitport.programs.program import Program
from logitport.programs.verifier import verify

# On a machine of which all cores are busy, the time of a core that is left for it may be short.
TIMEOUT_SECONDS = 300
MAX_CPU_SECONDS = 60


def main() -> None:
    """Build, and report the result."""
    signal.alarm(TIMEOUT_SECONDS)  # the default handler ends this process
    for limited, limit in ((resource.RLIMIT_CPU, MAX_CPU_SECONDS), (resource.RLIMIT_CORE, 0)):  # the compiler's, too
        with suppress(ValueError, OSError):  # there is a lower limit
            resource.setrlimit(limited, (limit, limit))
    _yield_to_others()
    try:
        result = build(sys.stdin.buffer.read())
    except Exception as error:  # noqa: BLE001 - the engine logs it, and goes on with the interpreter
        result = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.buffer.write(orjson.dumps(result))


def _yield_to_others() -> None:
    """Use cores that no other process uses, and make a group with the compiler.

    A new session would also be a group; Linux gives each session the same share of the cores (sched_autogroup).
    """
    os.setpgid(0, 0)
    # Not nice(19): with such a process and an engine on two cores, a run of min-p took a third longer.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def build(data: bytes) -> dict[str, Any]:
    """Build the program with these bytes.

    Returns:
        `path`; or `error`, with `fusible` False for a program that cannot be compiled, and `compiler` False if there is
        no compiler.
    """
    verified = verify(Program.from_bytes(data))
    try:
        source = source_of(phases_of(verified))
    except NotFusible as error:
        return {"error": str(error), "fusible": False}
    compiler = find_compiler()
    if compiler is None:
        return {"error": "there is no C++ compiler: install one, or set CXX", "compiler": False}
    key = cache.key_of(source, compiler)
    path = cache.load(key)
    if path is None:
        try:
            path = cache.store(key, _compiled(verified, source, compiler))
        except CompilerFailed as error:
            return {"error": str(error)}
    return {"path": str(path)}


def _compiled(verified: Any, source: str, compiler: Any) -> bytes:
    """The checked shared object. It is loaded from a folder of its own before it is stored."""
    from logitport.programs.fused.check import check

    with tempfile.TemporaryDirectory(prefix="logitport-fused-") as folder:
        path = Path(folder) / "program.so"
        compile_to(compiler, source, path)
        data = path.read_bytes()
        check(verified, Native(path))
        return data
