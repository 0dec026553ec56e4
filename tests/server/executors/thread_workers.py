"""Workers on threads of this process: a test can change what is limited or missing there."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress

from logitport.system.cuda_contract import CudaError
from logitport_server.executors.worker_processes.worker_process import WorkerProcess
from logitport_server.worker.call_loop import serve
from logitport_server.worker.output import Output


class OnThread(WorkerProcess):
    """A worker that runs on a thread of this process. Killing it closes its connection."""

    def kill(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def request_stack(self) -> None:
        """The signal would go to this process."""


def fork(*, holds_gpu: bool = False) -> Future[WorkerProcess]:
    """Start a worker, as a zygote does."""
    server_end, worker_end = socket.socketpair()
    ended: Future[int] = Future()

    def run() -> None:
        with worker_end, suppress(CudaError, OSError):
            serve(worker_end, Output())
        ended.set_result(1)

    threading.Thread(target=run, daemon=True).start()
    forked: Future[WorkerProcess] = Future()
    forked.set_result(OnThread(server_end, os.pidfd_open(os.getpid()), ended, holds_gpu=holds_gpu))
    return forked
