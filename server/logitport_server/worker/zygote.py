"""The preloaded parent of all workers of one Python: it forks one when the server asks, and tells how each one ended.

It starts no thread, reads nothing that a client sent, and holds no descriptor but its socket, so that what it forks
is clean.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import selectors
import socket
from contextlib import suppress
from typing import Any

import orjson

from logitport.payload import wire_names
from logitport_server import stubs
from logitport_server.sandbox import Limits, SandboxError, WorkerForker
from logitport_server.worker.malloc import keep_large_blocks

_LONGEST_MESSAGE = 1 << 16


def run(control: socket.socket) -> None:
    """Fork workers until the server closes its end of the socket; the workers end with it."""
    parent = WorkerForker()  # first of all: it gives up root
    keep_large_blocks()
    _preload()
    zygote = _Zygote(control, parent)
    zygote.tell({"ready": True})
    zygote.run()


def _preload() -> None:
    """Import what a worker needs, so that a fork has it at once."""
    import logitport_server.worker.serve  # noqa: F401

    wire_names.load_entry_points()
    stubs.offer()
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.zeros(1).half()  # looks up in /proc what the CPU can do; workers have no /proc
        _preload_transformers()
    gc.collect()
    gc.freeze()  # a collection in a worker must not touch, and so copy, the pages that all share


def _preload_transformers() -> None:
    """Import what transformers' processors are defined in: a second, and 20 MB, of every worker that wants it."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None or stubs.are_in(found.origin):
        return
    with suppress(Exception):  # a worker that wants it will tell why it cannot have it
        import transformers.generation.logits_process  # noqa: F401


class _Zygote:
    def __init__(self, control: socket.socket, parent: WorkerForker) -> None:
        self._control = control
        self._parent = parent
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        # By pidfd: the number that the server gave the worker, and its process.
        self._workers: dict[int, tuple[int, int]] = {}

    def tell(self, message: dict[str, Any], *descriptors: int) -> None:
        """Tell the server."""
        socket.send_fds(self._control, [orjson.dumps(message)], descriptors)

    def run(self) -> None:
        """Do what the server asks, and see workers end, until the server is gone."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._control:
                    self._bury(key.fd)
                    continue
                message, descriptors, _, _ = socket.recv_fds(self._control, _LONGEST_MESSAGE, 1)
                if not message:
                    return
                self._fork(orjson.loads(message), descriptors[0])

    def _fork(self, message: dict[str, Any], descriptor: int) -> None:
        worker = message["worker"]
        try:
            contained = self._parent.fork(lambda: _serve(descriptor), Limits(**message["limits"]), [descriptor])
        except (OSError, SandboxError) as error:
            self.tell({"failed": worker, "reason": str(error)})
        else:
            self._workers[contained.pidfd] = worker, contained.pid
            self._selector.register(contained.pidfd, selectors.EVENT_READ)
            self.tell({"forked": worker}, contained.pidfd)
        finally:
            os.close(descriptor)

    def _bury(self, pidfd: int) -> None:
        worker, pid = self._workers.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self.tell({"ended": worker, "status": os.waitstatus_to_exitcode(status)})


def _serve(descriptor: int) -> None:
    from logitport_server.worker.serve import serve

    serve(socket.socket(fileno=descriptor))
