"""The front door's end of the zygote of principals' processes. It is launched again when it ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport.errors import LimitExceeded, ServerUnavailable
from logitport_proto import registry_pb2
from logitport_server.config.sources import VARIABLES
from logitport_server.front_door.running_process import RunningProcess
from logitport_server.lifecycle.launch_backoff import LaunchBackoff
from logitport_server.lifecycle.pidfd import describe_end
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.principal_process import lifeline
from logitport_server.principal_process import zygote_messages as messages
from logitport_server.principal_process.channel import Channel, ChannelError
from logitport_session.resources import descriptors as descriptors_of_process

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from logitport_server.front_door.running_process import Handler
    from logitport_server.principal_process.message import Message
    from logitport_server.principal_process.setup import Setup
    from logitport_server.principal_process.worker_messages import WorkerSettings

logger = logging.getLogger(__name__)

# Variables with secrets that no process needs: options with URLs, tokens of the SDK, and headers of exporters.
_SECRETS = ("LOGITPORT_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
# The text shows in `ps`. With -m, Python before 3.11 would search the working directory first, also for the modules
# that it imports before any of ours. With -c, it searches there from the first statement on.
# The zygote ends with the front door, also while its imports run, which take seconds.
_CODE = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "from logitport_sandbox.linux import end_with_parent; end_with_parent(int(sys.argv[2])); "
    "from logitport_server.principal_process.principal_zygote import main; main()"
)
_FORK_SECONDS = 10.0
_START_SECONDS = 180.0
_END_SECONDS = 0.5


class LaunchedZygote(NamedTuple):
    """A zygote, whose imports may still run."""

    process: subprocess.Popen[bytes]
    control: socket.socket


def launch(setup: Setup) -> LaunchedZygote:
    """Start a zygote. It ends when the socket is closed, or with the calling thread. Raises OSError."""
    ours, theirs = Channel.pair()
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES and name not in _SECRETS}
    environment |= {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),  # the same modules as here
        "OPENBLAS_NUM_THREADS": "1",  # numpy's BLAS would start threads before the fork
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with theirs:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", _CODE, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what an installed processor prints; stdout is for the line with the address
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C reaches the front door alone, which drains first
            )
        Channel(ours, messages.FROM_ZYGOTE).send(messages.Prepare(setup=setup))
    except BaseException:
        ours.close()
        raise
    return LaunchedZygote(process, ours)


class SessionZygote:
    """Forks processes. All methods belong to the event loop.

    Args:
        launched: the first zygote.
        workers: how processes run shipped processors.
        handlers: see `RunningProcess`.

    Attributes:
        device: torch's name of the device for logits, once it has started.
        installed: descriptions of the installed processors by name, once it has started. The front door imports none.
    """

    def __init__(
        self,
        setup: Setup,
        launched: LaunchedZygote,
        workers: WorkerSettings,
        handlers: Mapping[type[Message], Handler],
    ) -> None:
        self.device = ""
        self.installed: dict[str, registry_pb2.ProcessorInfo] = {}
        self._workers = workers
        self._setup = setup
        self._handlers = handlers
        self._backoff = LaunchBackoff()
        self._numbers = 0
        self._launched = launched
        self._channel = Channel(launched.control, messages.FROM_ZYGOTE)
        self._prepared: asyncio.Future[None] | None = None
        self._forking: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._processes: dict[int, RunningProcess] = {}
        self._launching: asyncio.TimerHandle | None = None
        self._was_ready = self._is_closed = False

    async def start(self) -> None:
        """Wait until processes can be forked. Raises StartupError."""
        self._listen()
        assert self._prepared is not None  # noqa: S101 - set by `_listen`
        try:
            await asyncio.wait_for(asyncio.shield(self._prepared), _START_SECONDS)
        except asyncio.TimeoutError:
            raise StartupError(
                f"the process that forks sessions' processes was not ready within {_START_SECONDS:.0f} s"
            ) from None

    async def fork(self, principal: str) -> RunningProcess:
        """Fork a process.

        Raises:
            LimitExceeded: the machine or the operator's limits do not permit another process.
            ServerUnavailable: the zygote has ended or does not answer, and is launched again.
        """
        loop = asyncio.get_running_loop()
        await self._ready_again()
        channel = self._channel
        self._numbers += 1
        number = self._numbers
        with descriptors_of_process.reported():
            ours, theirs = Channel.pair()
            reading_end, writing_end = lifeline.pipe()
        forked = self._forking[number] = loop.create_future()
        try:
            with theirs:
                channel.send(
                    messages.ForkProcess(number=number, principal=principal, workers=self._workers),
                    [theirs.fileno(), reading_end],
                    may_wait=False,
                )
            pidfd, process_id = await asyncio.wait_for(forked, _FORK_SECONDS)
        except BaseException as error:
            ours.close()
            os.close(writing_end)
            if forked.done() and not forked.cancelled() and forked.exception() is None:
                os.close(forked.result()[0])  # this call was cancelled at the same time
            if isinstance(error, asyncio.TimeoutError):
                self._restart(channel, f"has not answered for {_FORK_SECONDS:g} s")
            if isinstance(error, (OSError, asyncio.TimeoutError)):
                raise ServerUnavailable("the process for the session could not be forked; try again") from error
            raise
        finally:
            self._forking.pop(number, None)
            os.close(reading_end)
        process = RunningProcess(principal, ours, pidfd, process_id, writing_end, self._handlers)
        self._processes[number] = process
        return process

    def close(self) -> None:
        """End the zygote. Its processes go on."""
        self._is_closed = True
        if self._launching is not None:
            self._launching.cancel()
        self._end_launched()

    async def _ready_again(self) -> None:
        """Wait for a zygote that is being launched again. Raises ServerUnavailable."""
        assert self._prepared is not None  # noqa: S101 - `start` has begun
        try:
            await asyncio.wait_for(asyncio.shield(self._prepared), _FORK_SECONDS)
        except asyncio.TimeoutError:
            raise ServerUnavailable("the process that forks sessions' processes is being started; try again") from None
        except StartupError:  # the operator's paths are in its message
            raise ServerUnavailable(
                "the process that forks sessions' processes cannot be started; the server's log has the reason; "
                "try again later"
            ) from None

    def _listen(self) -> None:
        self._prepared = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._receive)

    def _receive(self) -> None:
        try:
            received = self._channel.receive(may_wait=False)
        except BlockingIOError:
            return
        except ChannelError as error:
            logger.error("the process that forks sessions' processes has sent %s", error)
            received = None
        if received is None:
            with suppress(subprocess.TimeoutExpired):  # it blocks the event loop
                self._launched.process.wait(_END_SECONDS)
            status = self._launched.process.returncode
            self._handle_end("has closed its socket" if status is None else describe_end(status))
        else:
            self._handle(*received)

    def _handle(self, event: Any, received: list[int]) -> None:
        assert self._prepared is not None  # noqa: S101 - set before anything is received
        if isinstance(event, messages.Prepared):
            self.device = event.device
            described = map(registry_pb2.ProcessorInfo.FromString, event.installed)
            self.installed = {info.names[0]: info for info in described}
            self._was_ready = True
            if self._launching is not None:
                self._launching.cancel()
            if not self._prepared.done():
                self._prepared.set_result(None)
        elif isinstance(event, messages.Refused):
            self._fail(event.reason)
            self._handle_end(f"cannot be used: {event.reason}")
        elif isinstance(event, messages.ProcessForked):
            forked = self._forking.get(event.number)
            if forked is None or forked.done():
                for pidfd in received:
                    os.close(pidfd)  # too late: it ends with its channel
            elif not received:
                forked.set_exception(descriptors_of_process.shortage())
            else:
                forked.set_result((received[0], event.process_id))
        elif isinstance(event, messages.ProcessForkFailed):
            forked = self._forking.get(event.number)
            if forked is not None and not forked.done():
                forked.set_exception(_refused(event))
        elif (process := self._processes.pop(event.number, None)) is not None:
            process.note_status(event.status)

    def _restart(self, channel: Channel, what: str) -> None:
        """Restart the zygote with this channel, unless it has ended."""
        if channel is self._channel and channel.fileno() >= 0:
            self._handle_end(what)

    def _handle_end(self, what: str) -> None:
        """Kill the zygote, and launch it again unless it was never ready. Running processes go on.

        `what` describes what it has done, for the log.
        """
        self._end_launched()
        self._fail("the process that forks sessions' processes ended at its start; see the lines before")
        for process in self._processes.values():
            process.note_status(None)
        self._processes.clear()
        for forked in self._forking.values():
            if not forked.done():
                forked.set_exception(ServerUnavailable("the process for the session could not be forked; try again"))
        if not self._was_ready or self._is_closed:
            return
        delay = self._backoff.next()
        logger.error(
            "the process that forks sessions' processes %s; it is started again%s. Open sessions go on; others wait",
            what,
            f" in {delay:g} s" if delay else "",
        )
        loop = asyncio.get_running_loop()
        if self._launching is not None:
            self._launching.cancel()
        self._prepared = loop.create_future()
        self._launching = loop.call_later(delay, self._launch)

    def _launch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._launched = launch(self._setup)
        except OSError as error:
            logger.error("the process that forks sessions' processes cannot be started: %s", error)
            self._launching = loop.call_later(max(1.0, self._backoff.next()), self._launch)
            return
        self._channel = Channel(self._launched.control, messages.FROM_ZYGOTE)
        loop.add_reader(self._channel.fileno(), self._receive)
        late = f"was not ready within {_START_SECONDS:g} s"
        self._launching = loop.call_later(_START_SECONDS, self._restart, self._channel, late)

    def _fail(self, reason: str) -> None:
        """Let those fail that wait until the zygote is ready."""
        assert self._prepared is not None  # noqa: S101 - set before anything is received
        if not self._prepared.done():
            self._prepared.set_exception(StartupError(reason))
            self._prepared.exception()  # nothing may wait for it

    def _end_launched(self) -> None:
        if self._channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
        self._launched.process.kill()
        with suppress(subprocess.TimeoutExpired):  # it blocks the event loop
            self._launched.process.wait(_END_SECONDS)


def _refused(event: messages.ProcessForkFailed) -> LimitExceeded:
    limit = "processes (ulimit -u, TasksMax= of systemd, pids.max of a container)"
    if event.error_number == errno.ENOMEM:
        limit = "memory (MemoryMax= of systemd, memory.max of a container)"
    elif event.error_number in (errno.EMFILE, errno.ENFILE):
        limit = "open files (ulimit -n, LimitNOFILE= of systemd)"
    return LimitExceeded(
        f"no process could be started for the session: {event.reason}; try again later, or have the server's operator "
        f"raise the limit of {limit}"
    )
