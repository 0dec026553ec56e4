"""Tests the layers by attempts from inside real workers.

Run as a program, it is the preloaded parent of those workers; `probe` starts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from logitport_sandbox.forker import WorkerForker
from logitport_sandbox.parent_launch import launch
from logitport_sandbox.plan import SandboxError, WorkerLimits
from logitport_sandbox.verification.attempts import ATTEMPTS, Attempt, Targets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Small, so that the attempts that exhaust them do not load the machine.
_LIMITS = WorkerLimits(memory_bytes=64 << 20, region_bytes=64 << 20, temporary_bytes=1 << 20, threads=8, open_files=64)
_ATTEMPT_SECONDS = 10.0
_PROBE_SECONDS = 120.0
_MESSAGE_BYTES = 4096
_THROUGH, _STOPPED = "through: ", "stopped: "


@dataclass(frozen=True)
class ProbeResult:
    """The result of one attempt.

    Attributes:
        what: description of the attempt.
        stopped: whether it was stopped.
        how: the error that stopped it, or what it obtained.
    """

    what: str
    stopped: bool
    how: str


def probe(python: str = sys.executable, without: Iterable[str] = (), devices: Sequence[str] = ()) -> list[ProbeResult]:
    """Make every attempt, each in its own worker, without these layers and with these device nodes.

    Raises SandboxError if no worker can be started.
    """
    name = f"logitport-{secrets.token_hex(8)}"
    ours, theirs = socket.socketpair()
    with (
        ours,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as abstract,
    ):
        abstract.bind(f"\0{name}")
        abstract.listen()
        with theirs:
            arguments = ["-m", __name__, str(theirs.fileno()), str(listener.getsockname()[1]), name]
            process = launch(python, arguments, pass_fds=[theirs.fileno()], without=without, devices=devices)
        try:
            ours.settimeout(_PROBE_SECONDS)
            report = json.loads(b"".join(iter(lambda: ours.recv(_MESSAGE_BYTES), b"")) or b'"it ended early"')
        finally:
            process.kill()
            process.wait()
    if isinstance(report, str):
        raise SandboxError(f"no worker could be started: {report}")
    return [ProbeResult(**result) for result in report]


def _main(report: socket.socket, port: int, abstract_socket: str) -> None:
    with report:
        try:
            results = _make_attempts(WorkerForker(), port, abstract_socket)
            report.sendall(json.dumps([asdict(result) for result in results]).encode())
        except (SandboxError, OSError) as error:
            report.sendall(json.dumps(str(error)).encode())


def _make_attempts(forker: WorkerForker, port: int, abstract_socket: str) -> list[ProbeResult]:
    path = f"/tmp/logitport-sibling-{secrets.token_hex(8)}"  # noqa: S108 - in its private folder, if it has one
    ours, theirs = socket.socketpair()
    sibling = forker.fork(lambda: _be_sibling(theirs, path), _LIMITS, [theirs.fileno()])
    theirs.close()
    ours.recv(1)
    targets = Targets(_LIMITS, -1, os.getpid(), sibling.pid, path, port, abstract_socket)
    try:
        return [_make(attempt, forker, targets) for attempt in ATTEMPTS]
    finally:
        ours.close()
        os.waitpid(sibling.pid, 0)
        os.close(sibling.pidfd)


def _be_sibling(channel: socket.socket, path: str) -> None:
    with contextlib.suppress(OSError):  # without the namespaces layer it has no temporary folder
        Path(path).write_text("a secret", encoding="ascii")
    channel.send(b".")
    channel.recv(1)
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _make(attempt: Attempt, forker: WorkerForker, targets: Targets) -> ProbeResult:
    ours, theirs = socket.socketpair()
    with ours:
        attacker = forker.fork(
            lambda: theirs.send(_try(attempt, replace(targets, result=theirs.fileno()))), _LIMITS, [theirs.fileno()]
        )
        theirs.close()
        ours.settimeout(_ATTEMPT_SECONDS)
        try:
            outcome = ours.recv(_MESSAGE_BYTES).decode() or f"{_STOPPED}its process was ended"
        except TimeoutError:
            outcome = f"{_STOPPED}it did not end"
        signal.pidfd_send_signal(attacker.pidfd, signal.SIGKILL)
        os.waitpid(attacker.pid, 0)
        os.close(attacker.pidfd)
    return ProbeResult(attempt.what, outcome.startswith(_STOPPED), outcome.partition(": ")[2])


def _try(attempt: Attempt, targets: Targets) -> bytes:
    try:
        outcome = f"{_THROUGH}{attempt.run(targets)}"
    except Exception as error:  # noqa: BLE001 - any error means that it was stopped
        outcome = f"{_STOPPED}{type(error).__name__}: {error}"
    return outcome.encode()[:_MESSAGE_BYTES]


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
