"""The zygote: forks the processes of principals on request, and reports their exit.

It starts no thread, reads no data of clients, and has no secret of the operator.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from logitport.errors import LogitportError
from logitport_server.principal_process import process  # here, so that processes share it
from logitport_server.principal_process import zygote_messages as messages
from logitport_server.principal_process.channel import Channel
from logitport_server.principal_process.preload import preload

if TYPE_CHECKING:
    from logitport_server.principal_process.setup import Preloaded, Setup


logger = logging.getLogger(__name__)


def main() -> None:
    """Run the program. Its argument is the descriptor of its socket."""
    run(socket.socket(fileno=int(sys.argv[1])))


def run(control: socket.socket) -> None:
    """Fork processes until the front door closes its end of the socket. They live on."""
    # The front door ends processes, after it has drained. A signal to all of the server's processes concerns it only:
    # SIGINT to stop, SIGHUP to read its files again. SIGTERM ends this process, or a fork: nothing else is lost.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(control, messages.TO_ZYGOTE)
    received = channel.receive()
    if received is None:
        return
    setup = received[0].setup
    try:
        preloaded = preload(setup)
    except LogitportError as error:
        channel.send(messages.Refused(reason=error.message))
        return
    installed = [preloaded.installed.describe(name).SerializeToString() for name in preloaded.installed]
    channel.send(messages.Prepared(device=preloaded.device, installed=installed))
    _PrincipalZygote(channel, setup, preloaded).run()


class _PrincipalZygote:
    def __init__(self, channel: Channel, setup: Setup, preloaded: Preloaded) -> None:
        self._channel = channel
        self._setup = setup
        self._preloaded = preloaded
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel.fileno(), selectors.EVENT_READ)
        # By pidfd: number and process id.
        self._processes: dict[int, tuple[int, int]] = {}

    def run(self) -> None:
        """Fork and reap until the front door closes the channel, or ends while a message is sent."""
        with suppress(ConnectionError):
            while True:
                for key, _ in self._selector.select():
                    if key.fd != self._channel.fileno():
                        self._reap(key.fd)
                        continue
                    received = self._channel.receive()
                    if received is None:
                        return
                    self._fork(*received)

    def _fork(self, request: messages.ForkProcess, descriptors: list[int]) -> None:
        connection, lifeline = descriptors
        try:
            process_id = os.fork()
            if process_id == 0:
                self._become_process(request, connection, lifeline)
            pidfd = _pidfd(process_id)
        except OSError as error:
            self._channel.send(
                messages.ProcessForkFailed(number=request.number, reason=str(error), error_number=error.errno or 0)
            )
        else:
            self._processes[pidfd] = request.number, process_id
            self._selector.register(pidfd, selectors.EVENT_READ)
            self._channel.send(messages.ProcessForked(number=request.number, process_id=process_id), [pidfd])
        finally:
            os.close(connection)
            os.close(lifeline)

    def _reap(self, pidfd: int) -> None:
        number, process_id = self._processes.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(process_id, 0)
        self._channel.send(messages.ProcessEnded(number=number, status=os.waitstatus_to_exitcode(status)))

    def _become_process(self, request: messages.ForkProcess, connection: int, lifeline: int) -> NoReturn:
        """In the child: serve the principal until the front door ends."""
        status = 1
        try:
            self._selector.close()
            for pidfd in self._processes:
                os.close(pidfd)
            self._channel.close_descriptor()
            process.run(request, socket.socket(fileno=connection), lifeline, self._setup, self._preloaded)
            status = 0
        except BaseException:
            logger.exception("a principal's process ends")
        finally:
            os._exit(status)


def _pidfd(process_id: int) -> int:
    """Return a descriptor of a fork. If none is free, end the fork, and raise OSError."""
    try:
        return os.pidfd_open(process_id)
    except OSError:
        os.kill(process_id, signal.SIGKILL)
        os.waitpid(process_id, 0)
        raise
