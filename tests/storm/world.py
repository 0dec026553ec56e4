"""The servers of a run, with their files, tokens and store; and what was broken, when."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logitport_server.access import new_token
from tests.conftest import _missing_layers
from tests.storm import orphans, slow_calls
from tests.storm.judge import Hit, Record
from tests.storm.server import BOUNDS, Process, StormServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_STORE_BYTES = 128 << 20  # an attacker registers payloads of 5 MB
_WATCH_SECONDS, _MEASURE_SECONDS = 0.1, 1.0
_START_SECONDS = 60.0
SETTLE_SECONDS = 20.0  # for processes below a server that has ended
_SCOPES = {"operator": ["admin", "apply"]}
_HARMFUL_ERRORS = r"of TrustDomain\(owner='(mixed|hostile)"  # quarantines
# Errors that are logged, and may prevent a start, by what is broken.
_EXPECTED_ERRORS = {
    "disk": r"store|disk|database",
    "descriptors": r"open files|descriptors",
    "principal's memory": r"MemoryError|memory",
    "principal killed": r"was killed by SIGKILL",
    "principal stopped": r"was killed by SIGKILL|does not answer|has not answered",
    "zygote killed": r"zygote",
    "zygote stopped": r"zygote",
}


class World:
    """Runs the servers of a script's world in a folder of its own, and starts each again when it has ended.

    Attributes:
        servers: the servers.
        tokens: the token of each principal.
        hits: what was broken.
        found: records of the servers: ends, leaks and logged errors.
        peaks: the highest values of `BOUNDS`.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.folder = Path(tempfile.mkdtemp(prefix="storm-"))
        orphans.adopt(True)
        self._before, self._shared = orphans.children(), _shared_memory()
        self.hits: list[Hit] = []
        self.found: list[Record] = []
        self.peaks: Counter[str] = Counter()
        self.tokens, self._lines = {}, {}
        for name in settings["principals"]:
            self.tokens[name], grant = new_token(name, _SCOPES.get(name, ["apply", "register"]))
            self._lines[name] = grant.line
        self.write_tokens()
        self.store = self.folder / "store"
        self.store.mkdir(mode=0o700)
        self.store_is_small = settings["small_store"] and _mount(self.store)
        preload = slow_calls.build(self.folder) if settings["slow_calls"] else ""
        options = ["--tokens", str(self.folder / "tokens"), "--store", str(self.store), "--device", "cpu"]
        options += [part for name, value in settings["options"].items() for part in (f"--{name}", str(value))]
        options += ["--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0"]
        options += [part for layer in _missing_layers() for part in ("--layers", f"{layer}=off")]
        names = [f"server-{number}" for number in range(settings["servers"])]
        self.servers = [StormServer(name, self.folder, options, preload) for name in names]
        self._ended = threading.Event()
        self._locks = {server.name: threading.Lock() for server in self.servers}
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Start all servers at the same time. Raises RuntimeError."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(StormServer.start, self.servers))
        self._watcher.start()

    def write_tokens(self, without: str = "") -> None:
        """Replace the file of tokens."""
        lines = [line for name, line in self._lines.items() if name != without]
        new = self.folder / "tokens.new"
        new.write_text("\n".join(lines))
        new.rename(self.folder / "tokens")

    @contextmanager
    def breaking(self, what: str, server: StormServer | None = None, principal: str = "") -> Iterator[None]:
        """Note that something of a server or of one of its principals, or of all, is broken during the block."""
        principal = principal if principal in self.tokens else ""  # a zygote, or a fork of it, has another name
        hit = Hit(what, server.name if server else "", time.monotonic(), principal=principal)
        self.hits.append(hit)
        try:
            yield
        finally:
            hit.ended = time.monotonic()

    def restart(self, server: StormServer, number: signal.Signals) -> None:
        """End a server, and start it again. Another thread that restarts it goes first."""
        what = "server drained" if number == signal.SIGTERM else "server killed"
        with self._locks[server.name], self.breaking(what, server):
            below = server.below()
            status = server.end(number)
            if number == signal.SIGTERM:
                if status != 0:
                    self.find("server ended", f"{server.name} ended with status {status}: {server.log_end()}")
                self._check_left(server)
            else:  # a killed server removes no files
                _wait(lambda: not any(process.runs for process in below), SETTLE_SECONDS)
                self._check_left(server, "files", "sockets")
                shutil.rmtree(server.temporary)
                server.temporary.mkdir()
            if not self._ended.is_set():
                self._start_again(server)

    def start_in_vain(self, server: StormServer) -> None:
        """Start another server on the address of one that runs, and note what is wrong about its end."""
        with self._locks[server.name]:  # the server is not restarted meanwhile
            second = StormServer("second", self.folder, server.options, target=server.target)
            with suppress(RuntimeError):
                second.start()
            assert second.process is not None
            assert server.process is not None
            status, runs = second.process.poll(), server.process.poll() is None
            if status in (0, None) and runs:
                self.find("no end", f"a second server on the same address has status {status}: {second.log_end()}")
            second.end(signal.SIGTERM)
            self._check_left(second)
            shutil.rmtree(second.folder)

    def finish(self, settle_seconds: float) -> None:
        """Wait until the servers need no more than at first, stop them, and look for what is left."""
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()
        deadline = time.monotonic() + settle_seconds
        for server in self.servers if settle_seconds else ():
            _wait(lambda server=server: not server.growth(), deadline - time.monotonic())
            if growth := server.growth():
                self.find("leak", f"{server.name} has {growth}")
        for server in self.servers:
            server.below()
            if server.process is not None and (status := server.end(signal.SIGTERM)) != 0:
                self.find("server ended", f"{server.name} ended with status {status}: {server.log_end()}")
            self._check_left(server)
            expected = {_EXPECTED_ERRORS[hit.what] for hit in self.hits if hit.what in _EXPECTED_ERRORS}
            ignored = "|".join([_HARMFUL_ERRORS, *expected])
            for error in server.errors(ignored):
                self.find("logged error", f"{server.name}: {error}")
        self._check_orphans()
        if found := _shared_memory() - self._shared:
            self.find("left behind", f"shared memory: {sorted(found)}")

    def close(self) -> None:
        """End the servers, and remove all files."""
        self._ended.set()
        self._kill()
        if self._watcher.ident is not None:
            self._watcher.join()
        self._kill()  # what it has started meanwhile
        for server in self.servers:
            for process in server.seen | (orphans.children() - self._before):
                with suppress(ProcessLookupError):
                    if process.runs:
                        os.kill(process.pid, signal.SIGKILL)
        orphans.adopt(False)
        orphans.collect(self._before)
        if self.store_is_small:
            subprocess.run(["umount", "-l", self.store], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def find(self, kind: str, detail: str) -> None:
        """Add a finding."""
        self.found.append({"kind": kind, "actor": "world", "at": time.monotonic(), "detail": detail, "event": {}})

    def _kill(self) -> None:
        for server in self.servers:
            if server.process is not None:
                server.serving = False
                server.process.kill()
                server.process.wait()

    def _start_again(self, server: StormServer) -> None:
        """Start a server; one that lacks what was broken meanwhile may need several attempts."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._ended.is_set() and time.monotonic() < deadline:
            begun = time.monotonic()
            try:
                server.start()
            except RuntimeError as error:
                if not any(hit.what in _EXPECTED_ERRORS and hit.touches(begun, time.monotonic()) for hit in self.hits):
                    self.find("no start", str(error))
            else:
                return

    def _check_left(self, server: StormServer, *ignored: str) -> None:
        def left() -> dict[str, Any]:
            return {what: which for what, which in server.left().items() if what not in ignored}

        _wait(lambda: not left(), SETTLE_SECONDS)
        if found := left():
            self.find("left behind", f"{server.name}: {found}")

    def _check_orphans(self) -> None:
        """Look for processes that have lost their server: they are children of this process now."""

        def left() -> set[Process]:
            servers = {server.pid for server in self.servers}
            return {process for process in orphans.children() - self._before if process.pid not in servers}

        _wait(lambda: not left(), SETTLE_SECONDS)
        if found := left():
            details = [f"{process.pid}: {process.describe()}" for process in found]
            self.find("left behind", f"processes without a server: {details}")

    def _watch(self) -> None:
        """Start servers that have ended again, and note the processes below each, and what they use."""
        measured = 0.0
        while not self._ended.wait(_WATCH_SECONDS):
            measures = time.monotonic() > measured + _MEASURE_SECONDS
            for server in self.servers:
                server.below()
                if measures and server.serving:
                    self._measure(server)
                    measured = time.monotonic()
                process = server.process
                if process is not None and process.poll() is not None and server.serving:
                    self.find(
                        "server ended", f"{server.name} ended with status {process.returncode}: {server.log_end()}"
                    )
                    self.restart(server, signal.SIGKILL)

    def _measure(self, server: StormServer) -> None:
        """Compare what a server uses with what it may use at most. Each bound is reported once."""
        for what, value in server.peaks().items():
            if value > BOUNDS[what] >= self.peaks[what]:
                self.find("over a bound", f"{server.name} has {value} {what}, over {BOUNDS[what]}")
            self.peaks[what] = max(value, self.peaks[what])


def _mount(folder: Path) -> bool:
    """Mount a small file system, if that is permitted."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_STORE_BYTES},mode=700", "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "logitport" in name}


def _wait(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
