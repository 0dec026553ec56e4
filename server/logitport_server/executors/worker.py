"""The server's end of one trust domain's worker. Its process is replaced whenever it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from logitport.errors import LimitExceeded, ProcessorTimedOut, from_proto
from logitport_proto import common_pb2
from logitport_server import descriptors
from logitport_server.dialects import failures
from logitport_server.dialects.failures import WorkerLost
from logitport_server.executors.zygote import NoAnswer, WorkerGone, WorkerProcess
from logitport_server.worker import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from logitport.errors import LogitportError
    from logitport_server.executors.gpu import Gpu
    from logitport_server.executors.zygote import Zygote
    from logitport_server.principals import TrustDomain
    from logitport_server.registry.quarantine import Quarantine
    from logitport_server.registry.source import Source

_Reply = TypeVar("_Reply", bound=messages.Reply)

logger = logging.getLogger(__name__)

# Names of calls that have the time of a load, for error messages.
_LOADING_CALLS: dict[type[messages.WorkerCall], str] = {
    messages.Host: "loading it",
    messages.Validate: "checking its parameters",
    messages.Start: "its start",
}

# A ready zygote forks a worker in milliseconds. One that must be launched first imports torch.
_FORK_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Deadlines:
    """How long a worker may take, in seconds.

    Attributes:
        call: for one call of a processor.
        load: to unpickle a processor, to create its instance, to check parameters, to build a request's state.
    """

    call: float
    load: float


class Worker:
    """Runs one trust domain's processors in a process that is replaced when it ends.

    Attributes:
        domain: the trust domain.
        lock: held from the beginning of a call to its end. All methods but `release`, `close` and `end_revoked` need
            it.
        dialects: the processors that sessions hold.
        idle_since: when the last call ended, in time.monotonic() seconds.
        gpu: the server's GPU, if it can share memory.
    """

    def __init__(
        self,
        domain: TrustDomain | None,
        zygote: Callable[[], Zygote],
        deadlines: Deadlines,
        quarantine: Quarantine,
        gpu: Gpu | None = None,
    ) -> None:
        self.domain = domain
        self.gpu = gpu
        self.lock = threading.Lock()
        self.dialects: WeakSet[Any] = WeakSet()
        self.deadlines = deadlines
        self.quarantine = quarantine
        self.idle_since = time.monotonic()
        self._zygote = zygote
        self._forked: Future[WorkerProcess] | None = None
        self._process: WorkerProcess | None = None
        # Objects that the process can drop: processors (state None), and states of processors.
        self._released: deque[tuple[int, int | None]] = deque()
        self._last_call: type[messages.WorkerCall] = messages.WorkerCall

    def reserve(self, source: Source, seconds: float) -> None:
        """Acquire the lock. Raises ProcessorTimedOut if other calls of the trust domain hold it for so long."""
        if not self.lock.acquire(timeout=seconds):
            raise ProcessorTimedOut(
                f"processor {source.display_name}: the worker of its trust domain was busy for {seconds:g} s; try "
                "again, or give slow processors a tenant of their own",
                processor=source.display_name,
            )

    @contextmanager
    def reserved(self, source: Source, seconds: float) -> Iterator[None]:
        """Hold the lock, as `reserve`, for the duration of the context."""
        self.reserve(source, seconds)
        try:
            yield
        finally:
            self.lock.release()

    def process(self) -> WorkerProcess:
        """Return the process; fork one if there is none.

        Raises:
            WorkerLost: that fails.
            LimitExceeded: the server has no descriptor for it.
        """
        if self._process is not None and not (self._process.alive and self._is_permitted(self._process)):
            self._close_process()
        if self._process is None:
            with descriptors.reported():
                forked, self._forked = self._forked or self._zygote().fork(), None
            try:
                self._process = forked.result(_FORK_TIMEOUT_SECONDS)
            except LimitExceeded:
                raise
            except Exception as error:
                forked.add_done_callback(_close_forked)
                raise WorkerLost(f"no worker for {self.domain}: it {error}") from error
            if not self._is_permitted(self._process):  # forked before the owner lost the scope
                return self.process()
        return self._process

    def send(
        self,
        process: WorkerProcess,
        source: Source,
        call: messages.WorkerCall,
        columns: Sequence[bytes] = (),
        descriptors: Sequence[int] = (),
        *,
        seconds: float,
    ) -> None:
        """Begin a call of a processor. `receive` ends it. Raises ProcessorTimedOut, WorkerLost."""
        if self._released:
            call.released = [self._released.popleft() for _ in range(len(self._released))]
        self._last_call = type(call)
        try:
            process.send(call, columns, descriptors, seconds)
        except (WorkerGone, NoAnswer) as error:
            raise self._replace_process(source, error, seconds) from None

    def receive(
        self, process: WorkerProcess, source: Source, expected: type[_Reply], *, seconds: float
    ) -> tuple[_Reply, list[memoryview]]:
        """End a call.

        Raises:
            ProcessorTimedOut: no reply within the seconds given to `send`. The process is killed.
            WorkerLost: the process ended, or its reply is invalid.
            LogitportError: the processor raised, or was refused.
        """
        try:
            reply, columns = process.receive()
        except (WorkerGone, NoAnswer) as error:
            raise self._replace_process(source, error, seconds) from None
        self.idle_since = time.monotonic()
        if isinstance(reply, messages.ErrorReply):
            raise self.processor_error(source, reply.error)
        if not isinstance(reply, expected):
            raise self.protocol_error(source, f"{type(reply).__name__} instead of {expected.__name__}")
        return reply, columns

    def processor_error(self, source: Source, error: messages.Error) -> LogitportError:
        """Convert an error that the worker sent."""
        proto = common_pb2.Error(code=error.code, message=error.message, remote_traceback=error.trace)  # type: ignore[arg-type]
        return failures.of_processor(from_proto(proto), source.display_name)

    def protocol_error(self, source: Source, what: str) -> LogitportError:
        """Kill the worker because it sent something invalid. Returns the error to raise."""
        return self._replace_process(source, WorkerGone(f"sent {what}"), 0.0)

    def end_revoked(self) -> None:
        """End an idle process that holds a GPU after its owner has lost the scope. A busy process is not ended."""
        if self.lock.acquire(blocking=False):
            if self._process is not None and not self._is_permitted(self._process):
                self._close_process()
            self.lock.release()

    def release(self, processor: int, state: int | None) -> None:
        """Let the process drop a state, or a processor, at its next call. Does not need the lock."""
        self._released.append((processor, state))

    def close(self) -> None:
        """End the process."""
        self._close_process()
        if self._forked is not None:
            self._forked.add_done_callback(_close_forked)
            self._forked = None

    def _is_permitted(self, process: WorkerProcess) -> bool:
        """Return whether the owner still has the scope for the GPU, if the process holds one."""
        return not process.holds_gpu or (self.gpu is not None and self.gpu.granted(self.domain))

    def _replace_process(self, source: Source, error: WorkerGone | NoAnswer, seconds: float) -> LogitportError:
        """Kill the process, record the failure and fork another process at once. Returns the error to raise."""
        failure: LogitportError
        if isinstance(error, NoAnswer):
            what = _LOADING_CALLS.get(self._last_call, "its call")
            # Within a step, even loading calls have only the time of a call, or the rest of it.
            is_load = self._last_call in _LOADING_CALLS and seconds >= self.deadlines.load
            option = "--load-timeout-seconds" if is_load else "--processor-timeout-seconds"
            reason = f"{what} took over {seconds:.3g} s ({option}), and its worker was ended: look for a loop"
            failure = ProcessorTimedOut(f"processor {source.display_name}: {reason}", processor=source.display_name)
        else:
            reason = f"its worker {error}"
            failure = WorkerLost(f"processor {source.display_name}: {reason}", processor=source.display_name)
        logger.warning("processor %s of %s: %s", source.display_name, self.domain, reason)
        self._close_process()
        self.quarantine.record_failure(self.domain, source.key, reason)
        with suppress(Exception):  # if it persists, the next call reports it
            self._forked = self._zygote().fork()
        return failure

    def _close_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        self._released.clear()


def _close_forked(forked: Future[WorkerProcess]) -> None:
    if not forked.cancelled() and forked.exception() is None:
        forked.result().close()
