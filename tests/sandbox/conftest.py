"""Programs that run as the preloaded parent of workers, in a real sandbox."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from logitport_sandbox import LAYERS, launch

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

_SECONDS = 60.0
_MESSAGE_BYTES = 1 << 16

# The start of each program. `fork` starts a worker that sends the result of `inside`, or its exception.
_PRELUDE = """
import json, os, signal, socket, sys
from logitport_sandbox import WorkerForker, WorkerLimits

server = socket.socket(fileno=int(sys.argv[1]))
parent = WorkerForker()

def send(message, *descriptors):
    socket.send_fds(server, [json.dumps(message).encode()], descriptors)

def fork(inside, limits=WorkerLimits(), keep=()):
    def child():
        try:
            send(inside())
        except Exception as error:
            send(f"{type(error).__name__}: {error}")
    return parent.fork(child, limits, [server.fileno(), *keep])
"""

# The end of each program. Workers end with their parent, so it waits for those that it has not waited for.
_EPILOGUE = """
try:
    while True:
        os.waitpid(-1, 0)
except ChildProcessError:
    pass
"""


class Program:
    """A running preloaded parent.

    Attributes:
        process: bubblewrap, or the parent itself.
        channel: the other end of the program's socket `server`.
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process = process
        self.channel = channel

    def receive(self) -> Any:
        """Return the program's next message, or None once it has ended."""
        return self.receive_with_descriptors()[0]

    def receive_with_descriptors(self) -> tuple[Any, list[int]]:
        """Return the program's next message, and the descriptors that are sent with it."""
        message, descriptors, _, _ = socket.recv_fds(self.channel, _MESSAGE_BYTES, 4)
        return (json.loads(message) if message else None), descriptors


_MISSING = {layer.name: layer.missing() for layer in LAYERS}


def _need_layers(*names: str) -> None:
    for name in names:
        if _MISSING[name] is not None:
            pytest.skip(f"this machine lacks {name}: {_MISSING[name]}")


@contextmanager
def _run(code: str, *, without: tuple[str, ...] = (), **options: Any) -> Iterator[Program]:
    _need_layers(*(layer.name for layer in LAYERS if layer.name not in without))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(_SECONDS)
    with ours:
        with theirs:
            arguments = ["-c", _PRELUDE + code + _EPILOGUE, str(theirs.fileno())]
            process = launch(sys.executable, arguments, pass_fds=[theirs.fileno()], without=without, **options)
        try:
            yield Program(process, ours)
        finally:
            process.kill()
            process.wait(_SECONDS)


@pytest.fixture
def need_layers() -> Callable[..., None]:
    """Skip the test if the machine lacks one of these layers."""
    return _need_layers


@pytest.fixture
def run() -> Callable[..., Any]:
    """Run this code as the program of a preloaded parent while the context lasts."""
    return _run
