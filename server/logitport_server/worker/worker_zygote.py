"""The zygote: the preloaded process of one Python that forks workers on request and reports their exit.

It starts no thread, reads no client data and holds no descriptor but its socket, so that a forked worker inherits
nothing else.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import selectors
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from logitport.payload import wire_names
from logitport.system.frame_limits import MAX_PACKET_BYTES
from logitport_sandbox import SandboxError, WorkerForker
from logitport_server.worker import messages
from logitport_server.worker.malloc import keep_large_blocks
from logitport_server.worker.shared_tokenizers import load_tokenizers
from logitport_server.worker.temporary_folder import choose_temporary_folder
from logitport_session import stubs
from logitport_session.resources import descriptors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.worker.messages import Fork, ZygoteEvent


def run(control: socket.socket, tokenizers: Sequence[str] = ()) -> None:
    """Fork workers until the server closes its end of the socket. The workers end with this process.

    `tokenizers` are the arguments of `load_tokenizers`.
    """
    forker = WorkerForker()  # must come first: it drops root
    keep_large_blocks()
    _preload(tokenizers)
    zygote = _Zygote(control, forker)
    with suppress(ConnectionError):  # the server has ended, perhaps with unread events: a traceback would be no news
        zygote.send(messages.Ready())
        zygote.run()


def _preload(tokenizers: Sequence[str]) -> None:
    """Import what workers need, so that a fork starts with it."""
    choose_temporary_folder()
    import logitport.payload.unpickle  # noqa: F401
    import logitport_server.worker.call_loop
    import logitport_server.worker.output
    import logitport_server.worker.stack  # noqa: F401

    wire_names.load_entry_points()
    stubs.offer()
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.zeros(1).half()  # reads the CPU's features from /proc, which workers do not have
        _preload_transformers()
    load_tokenizers(tokenizers)
    gc.collect()
    gc.freeze()  # a collection in a worker would write to, and so copy, the shared pages


def _preload_transformers() -> None:
    """Import the module of transformers' processors: it would take each worker a second and 20 MB."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None or stubs.are_in(found.origin):
        return
    with suppress(Exception):  # a worker that imports it again reports the error
        import transformers.generation.logits_process  # noqa: F401


class _Zygote:
    def __init__(self, control: socket.socket, forker: WorkerForker) -> None:
        self._control = control
        self._forker = forker
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        # By pidfd: the server's number for the worker, and its pid.
        self._workers: dict[int, tuple[int, int]] = {}

    def send(self, event: ZygoteEvent, *sent: int) -> None:
        """Send an event to the server."""
        socket.send_fds(self._control, [messages.encode(event)], sent)

    def run(self) -> None:
        """Fork and reap workers until the server closes the socket."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._control:
                    self._reap(key.fd)
                    continue
                message, received, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, 1)
                if not message:
                    return
                request = messages.decode_fork(message)
                if received:
                    self._fork(request, received[0])
                else:  # the kernel drops what it has no number for
                    self.send(messages.ForkFailed(request.worker, "no free descriptor", lacks_descriptors=True))

    def _fork(self, request: Fork, descriptor: int) -> None:
        try:
            process = self._forker.fork(lambda: _serve(descriptor), request.limits, [descriptor])
        except (OSError, SandboxError) as error:
            lacks = descriptors.is_shortage(error)
            self.send(messages.ForkFailed(request.worker, str(error), lacks_descriptors=lacks))
        else:
            self._workers[process.pidfd] = request.worker, process.pid
            self._selector.register(process.pidfd, selectors.EVENT_READ)
            self.send(messages.Forked(request.worker), process.pidfd)
        finally:
            os.close(descriptor)

    def _reap(self, pidfd: int) -> None:
        worker, pid = self._workers.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self.send(messages.Ended(worker, os.waitstatus_to_exitcode(status)))


def _serve(descriptor: int) -> None:
    from logitport_server.worker.call_loop import serve
    from logitport_server.worker.output import capture
    from logitport_server.worker.stack import write_when_signalled

    connection = socket.socket(fileno=descriptor)
    write_when_signalled(connection)
    serve(connection, capture())
