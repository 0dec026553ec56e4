"""One principal's process: serves the streams that the front door opens."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from logitport.system.fair_threads import FairThreads
from logitport_server import tracing
from logitport_server.lifecycle import collector
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.principal_process import kernel_limits, lifeline, process_messages
from logitport_server.principal_process.channel import Channel, ChannelError
from logitport_server.principal_process.link import Link
from logitport_server.principal_process.open_streams import OpenStreams
from logitport_server.principal_process.processor_resolver import ProcessorResolver, Registered
from logitport_server.principal_process.registration_checks import Checks
from logitport_server.principal_process.reporter import Reporter
from logitport_server.principal_process.streams import Streams
from logitport_server.principal_process.workers.lent_executor import executor_of
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.transports.refusals import Refusals
from logitport_server.transports.session_table import SessionTable
from logitport_session.engine_session.engine_session import EngineSession
from logitport_session.requests.principal_memory import PrincipalMemory

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from concurrent.futures import Future

    from logitport_proto import processing_pb2
    from logitport_server.principal_process.setup import Preloaded, Setup
    from logitport_server.principal_process.zygote_messages import ForkProcess
    from logitport_session.trust.principals import Principal

logger = logging.getLogger(__name__)

# Admissions in the background that run at the same time. Most of them wait for a worker.
_MAX_ADMISSION_THREADS = 64
# How long a thread may compute while others of the process wait for the interpreter's lock. Each waiting thread wakes
# up once in this time. With 0.1 ms, four threads that compute in Python pass the lock on thousands of times a second.
# Linux 6.18 then lets this group run for up to 250 ms although threads of other groups are ready. Beside four such
# processes on 2 cores, the longest step of another principal over gRPC takes 685 ms with 0.1 ms, 306 with 1 ms, 102 to
# 116 with 5 ms (Python's default), 50 with 10 ms, and 37 to 51 with 20 ms. Small steps of the same principal beside its
# own long ones become slower: the median with 5 ms is 2.8 times that with 0.1 ms, and with 20 ms 6.6 times.
_SWITCH_SECONDS = 0.01


def run(request: ForkProcess, connection: socket.socket, reading_end: int, setup: Setup, preloaded: Preloaded) -> None:
    """Serve until the front door ends, or closes the channel.

    Args:
        request: names the principal.
        connection: the channel to the front door.
        reading_end: of the lifeline.
        setup: the operator's options.
        preloaded: what all processes have.
    """
    lifeline.end_with(reading_end)
    _show_in_lists(request.principal)
    kernel_limits.apply(setup.process_memory)
    sys.setswitchinterval(_SWITCH_SECONDS)
    collector.begin()
    link = Link(Channel(connection, process_messages.TO_PROCESS, is_of_process=True))
    process = _PrincipalProcess(request, link, setup, preloaded)
    process.start()
    try:
        link.run()
    except ChannelError:
        logger.exception("the front door has sent an invalid message")
    finally:
        process.close()


def _show_in_lists(principal: str) -> None:
    """Let `top` and `ps` print the principal as the name of this process; the kernel keeps 15 bytes."""
    if principal:
        with suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as file:
            file.write(principal.encode())


class _PrincipalProcess:
    def __init__(self, request: ForkProcess, link: Link, setup: Setup, preloaded: Preloaded) -> None:
        principal = request.principal
        self._device = preloaded.device
        self._trusted_keys = None
        if setup.requires_signatures:
            from logitport_server.registry.known_keys import KnownKeys

            self._trusted_keys = KnownKeys({})  # the first `UseKeys` sets them, before all streams
        policy = PayloadPolicy(
            allow_shipped=setup.enable_custom_logit_processor,
            allow_programs=setup.programs,
            max_bytes=setup.max_payload_bytes,
            trusted_keys=self._trusted_keys,
        )
        self._names = ProcessorResolver(preloaded.installed, policy, Registered(link).find)
        self._executor = executor_of(request.workers, link, principal, self._device)
        self._limits = setup.session_limits
        self._link = link
        self._memory = PrincipalMemory(setup.session_limits.max_principal_memory, self._borrow_memory)
        self._admission_threads = FairThreads(_MAX_ADMISSION_THREADS, "logitport-admission")
        self._open_streams = OpenStreams()
        session_table = SessionTable(setup.max_session_age)
        counts = SessionCounts(preloaded.installed)
        self._reporter = Reporter(
            link,
            counts,
            session_table,
            self._executor,
            lambda: self._admission_threads.waiting,
            tracing.configure_queue(),
        )
        streams = Streams(
            principal,
            self._open_session,
            Checks(policy, self._executor.check_python).check_message,
            counts,
            Refusals(counts),
            session_table,
            setup.session_limits.max_message_bytes,
            setup.stall_seconds,
            self._open_streams,
        )
        link.handle(process_messages.OpenStream, streams.open)
        link.handle(process_messages.AttachConnection, streams.attach)
        link.handle(process_messages.Leave, lambda *_: streams.leave())
        link.handle(process_messages.Ping, lambda *_: None)
        link.handle(process_messages.UseKeys, self._use_keys)
        link.handle(
            process_messages.GiveBackMemory, lambda *_: process_messages.MemoryPart(num_bytes=self._memory.give_back())
        )

    def start(self) -> None:
        """Start the threads."""
        self._reporter.start()
        threading.Thread(target=self._collect, name="logitport-collector", daemon=True).start()

    def close(self) -> None:
        """Report the last numbers. The end of the process releases the rest."""
        self._reporter.close()

    def _open_session(self, principal: Principal, opening: processing_pb2.OpenSession) -> EngineSession:
        return EngineSession(
            opening, self._names, self._executor, self._device, self._limits, principal, self._submit, self._memory
        )

    def _borrow_memory(self) -> int:
        part: process_messages.MemoryPart = self._link.call(process_messages.BorrowMemory()).message
        return part.num_bytes

    def _submit(self, principal: str, work: Callable[[], None]) -> Future[None]:
        return self._admission_threads.submit(principal, work)

    def _use_keys(self, message: process_messages.UseKeys, descriptors: list[int]) -> None:  # noqa: ARG002
        if self._trusted_keys is not None:
            self._trusted_keys.use(message.keys)

    def _collect(self) -> None:
        """Collect garbage at intervals and when the last stream has ended, and return freed memory to the kernel."""
        while True:
            is_idle = self._open_streams.wait_until_idle(collector.INTERVAL_SECONDS)
            gc.collect()
            if self._memory.take_freed() or is_idle:
                collector.return_freed_memory()
