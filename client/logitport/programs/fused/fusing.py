"""Compiled programs of this process. They are built by other processes, one at a time; nothing waits for them."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache as cached
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import orjson

from logitport.errors import InvalidArgument
from logitport.programs.fused import cache
from logitport.programs.fused.native import Native, is_fit, parallel
from logitport.programs.fused.nodes import may_fuse

if TYPE_CHECKING:
    import torch

    from logitport.programs.verifier import Verified

logger = logging.getLogger(__name__)

VARIABLE = "LOGITPORT_FUSE"
# A shared object is not unloaded.
_MAX_PROGRAMS = 256
# After it, no program is built.
_MAX_FAILURES = 3
# The process itself ends earlier.
_TIMEOUT_SECONDS = 310.0
# Not `-m`: that would find modules in the current folder. Modules are found where this process finds them.
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from logitport.programs.fused.build import main; main()"


class Fusing:
    """Requests and keeps compiled programs. Thread-safe."""

    def __init__(self) -> None:
        self._ready: dict[str, Native] = {}
        self._requested: set[str] = set()
        self._waiting: SimpleQueue[Verified] = SimpleQueue()
        self._finished = threading.Condition()
        self._unfinished = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._owner = os.getpid()
        # Not started by the first request: that would wait until the thread runs. A daemon: an interpreter that ends
        # does not wait for a compiler.
        threading.Thread(target=self._work, name="logitport-fuse", daemon=True).start()
        atexit.register(self._end)

    def find(self, verified: Verified, logits: torch.Tensor, threads: int) -> Native | None:
        """The compiled program; None while it is not ready, or if it cannot run on these logits.

        The first call for a program requests it. Returns at once.
        """
        digest = verified.program.digest
        native = self._ready.get(digest)
        if native is None and (digest in self._requested or not may_fuse(verified)):
            return None
        if not is_fit(logits) or (threads > 1 and parallel() is None):
            return None
        if native is None and len(self._requested) < _MAX_PROGRAMS and self._failures < _MAX_FAILURES:
            self._requested.add(digest)
            with self._finished:
                self._unfinished += 1
            self._waiting.put(verified)
        return native

    def wait(self, seconds: float) -> bool:
        """Wait until no program is being built. Returns whether that is so."""
        with self._finished:
            return self._finished.wait_for(lambda: not self._unfinished, seconds)

    def _work(self) -> None:
        while True:
            self._add(self._waiting.get())
            with self._finished:
                self._unfinished -= 1
                self._finished.notify_all()

    def _add(self, verified: Verified) -> None:
        name = verified.program.name
        if self._failures >= _MAX_FAILURES:
            return
        try:
            built = self._build(verified.program.to_bytes())
            if "path" in built:
                path = Path(built["path"])
                self._ready[verified.program.digest] = Native(cache.checked(path, cache.digest_of(path)))
                logger.info("program %r is compiled: %s", name, path)
                return
            error = built["error"]
            if not built.get("fusible", True):
                logger.debug("program %r is not compiled: %s", name, error)
                return
            self._failures = _MAX_FAILURES if not built.get("compiler", True) else self._failures + 1
        except Exception as unexpected:  # noqa: BLE001 - the interpreter runs the program
            error = repr(unexpected)
            self._failures += 1
        logger.warning("program %r is not compiled, and runs as without %s: %s", name, VARIABLE, error)

    def _build(self, data: bytes) -> dict[str, Any]:
        """Return the report of `build`. Little is done in this thread: a step could wait for the interpreter's lock."""
        command = [sys.executable, "-I", "-c", _COMMAND, *map(str, sys.path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = self._process = subprocess.Popen(  # noqa: S603 - this interpreter
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        try:
            out, _ = process.communicate(data, timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._end()
            process.communicate()
            return {"error": f"building it took longer than {_TIMEOUT_SECONDS:g} s"}
        finally:
            self._process = None
        if process.returncode:
            return {"error": f"the process that builds it ended with {process.returncode}"}
        built: dict[str, Any] = orjson.loads(out)
        return built

    def _end(self) -> None:
        """End the process that builds, and its compiler, which is in its group."""
        process = self._process
        if process is not None and self._owner == os.getpid() and process.returncode is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()  # it has no group yet


def of_environment() -> Fusing | None:
    """The compiled programs of this process; None unless LOGITPORT_FUSE is "on".

    Raises:
        InvalidArgument: it is neither "on" nor "off".
    """
    chosen = os.environ.get(VARIABLE) or "off"
    if chosen not in ("on", "off"):
        raise InvalidArgument(f"{VARIABLE} is {chosen!r}; write on or off")
    return _shared(os.getpid()) if chosen == "on" and sys.platform == "linux" and sys.executable else None


@cached
def _shared(_: int) -> Fusing:
    """One for each process: the thread does not exist in a forked one."""
    return Fusing()
