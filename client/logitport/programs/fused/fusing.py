"""Compiled programs of this process. They are built by other processes, one at a time; nothing waits for them."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from functools import cache as cached
from pathlib import Path
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
_TIMEOUT_SECONDS = 70.0
# Not `-m`: that would find modules in the current folder. Modules are found where this process finds them.
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from logitport.programs.fused.build import main; main()"


class Fusing:
    """Requests and keeps compiled programs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: dict[str, Native] = {}
        self._requested: set[str] = set()
        self._waiting: deque[Verified] = deque()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._owner = os.getpid()
        atexit.register(self._end)

    def find(self, verified: Verified, logits: torch.Tensor, threads: int) -> Native | None:
        """The compiled program; None while it is not ready, or if it cannot run on these logits.

        The first call for a program requests it. Returns at once.
        """
        native = self._ready.get(verified.program.digest)
        if native is None and (verified.program.digest in self._requested or not may_fuse(verified)):
            return None
        if not is_fit(logits) or (threads > 1 and parallel() is None):
            return None
        if native is None:
            self._request(verified)
        return native

    def wait(self, seconds: float) -> bool:
        """Wait until no program is requested. Returns whether that is so."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _request(self, verified: Verified) -> None:
        with self._lock:
            if len(self._requested) >= _MAX_PROGRAMS or self._failures >= _MAX_FAILURES:
                return
            self._requested.add(verified.program.digest)
            self._waiting.append(verified)
            if self._thread is None or not self._thread.is_alive():  # it is dead in a forked process
                # A daemon: an interpreter that ends does not wait for a compiler.
                self._thread = threading.Thread(target=self._work, name="logitport-fuse", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                verified = self._waiting.popleft()
            self._add(verified)

    def _add(self, verified: Verified) -> None:
        name = verified.program.name
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
        """What `build` reports. Little is done in this thread: a step could wait for the lock of the interpreter."""
        command = [sys.executable, "-I", "-c", _COMMAND, *sys.path]
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
    return _shared() if chosen == "on" and sys.platform == "linux" and sys.executable else None


@cached
def _shared() -> Fusing:
    return Fusing()
