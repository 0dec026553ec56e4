"""The server's end of one trust domain's worker: whichever process that is at present."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from logitport.errors import ProcessorTimedOut, from_proto
from logitport_proto import common_pb2
from logitport_server.dialects import failures
from logitport_server.dialects.failures import WorkerLost
from logitport_server.executors.zygote import NoAnswer, WorkerGone, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from logitport.errors import LogitportError
    from logitport_server.executors.gpu import Gpu
    from logitport_server.executors.zygote import Zygote
    from logitport_server.principals import Domain
    from logitport_server.registry.quarantine import Quarantine
    from logitport_server.registry.source import Source

logger = logging.getLogger(__name__)

# What a worker is asked, as its author may be told of it; all else is a call.
_ASKED = {"host": "loading it", "validate": "checking its parameters", "start": "its start"}

# To have a worker of a zygote that is there takes milliseconds; one that must be started first imports torch.
_FORK_SECONDS = 60.0


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
    """Runs what one trust domain has shipped, in a process that is replaced when it ends.

    Attributes:
        domain: whose code it runs.
        lock: held from the beginning of a call to its end; all methods but `forget`, `close` and `end_revoked` need it.
        dialects: the processors that sessions hold.
        idle_since: when a call ended last, as time.monotonic() tells it.
        gpu: the server's, if it can share memory of it.
    """

    def __init__(
        self,
        domain: Domain | None,
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
        # What the process need not keep any more: processors (state None), and states of processors.
        self._gone: deque[tuple[int, int | None]] = deque()
        self._asked = ""  # last, in the header's words

    def reserve(self, source: Source, seconds: float) -> None:
        """Take the lock. Raises ProcessorTimedOut if others of the trust domain hold it all this time."""
        if not self.lock.acquire(timeout=seconds):
            raise ProcessorTimedOut(
                f"processor {source.title}: the worker of its trust domain was busy for {seconds:g} s; call again, or "
                "give slow processors a tenant of their own",
                processor=source.title,
            )

    @contextmanager
    def reserved(self, source: Source, seconds: float) -> Iterator[None]:
        """`reserve` for as long as the context lasts."""
        self.reserve(source, seconds)
        try:
            yield
        finally:
            self.lock.release()

    def process(self) -> WorkerProcess:
        """The process, forked if there is none. Raises WorkerLost if it cannot be had."""
        if self._process is not None and not (self._process.alive and self._may_live(self._process)):
            self._let_go()
        if self._process is None:
            forked, self._forked = self._forked or self._zygote().fork(), None
            try:
                self._process = forked.result(_FORK_SECONDS)
            except Exception as error:
                forked.add_done_callback(_close_process)
                raise WorkerLost(f"there is no worker for {self.domain}: it {error}") from error
            if not self._may_live(self._process):  # it was forked before the author lost the scope
                return self.process()
        return self._process

    def send(
        self,
        process: WorkerProcess,
        source: Source,
        header: dict[str, Any],
        columns: Sequence[bytes] = (),
        descriptors: Sequence[int] = (),
        *,
        seconds: float,
    ) -> None:
        """Begin a call of a processor; `receive` ends it. Raises ProcessorTimedOut, WorkerLost."""
        if self._gone:
            header["gone"] = [self._gone.popleft() for _ in range(len(self._gone))]
        header["name"] = source.title
        self._asked = header["do"]
        try:
            process.send(header, columns, descriptors, seconds)
        except (WorkerGone, NoAnswer) as error:
            raise self._lost(source, error, seconds) from None

    def receive(
        self, process: WorkerProcess, source: Source, *, seconds: float
    ) -> tuple[dict[str, Any], list[memoryview]]:
        """End a call.

        Raises:
            ProcessorTimedOut: no answer within the seconds that the call was begun with; the process is killed.
            WorkerLost: the process ended, or sent what cannot be understood.
            LogitportError: what the processor raised, or was refused for.
        """
        try:
            header, columns = process.receive()
        except (WorkerGone, NoAnswer) as error:
            raise self._lost(source, error, seconds) from None
        self.idle_since = time.monotonic()
        if "error" in header:
            raise self.error(source, header["error"])
        return header, columns

    def error(self, source: Source, told: object) -> LogitportError:
        """An error as the worker tells it. Raises WorkerLost if that is none."""
        if not isinstance(told, dict):
            raise self.misunderstood(source, "an error that is no object")
        message = common_pb2.Error()
        try:
            message.code = told["code"]
            message.message, message.remote_traceback = told["message"], told["trace"]
        except (KeyError, TypeError, ValueError) as error:
            raise self.misunderstood(source, f"an error that is none: {error}") from None
        return failures.of_processor(from_proto(message), source.title)

    def misunderstood(self, source: Source, what: str) -> LogitportError:
        """The worker sent what cannot be used, and is ended."""
        return self._lost(source, WorkerGone(f"sent {what}"), 0.0)

    def end_revoked(self) -> None:
        """End the process if its author has lost the scope for what it holds, unless it is in a call."""
        if self.lock.acquire(blocking=False):
            if self._process is not None and not self._may_live(self._process):
                self._let_go()
            self.lock.release()

    def forget(self, processor: int, state: int | None) -> None:
        """The process may forget a state, or a processor; it is told with the next call. Needs no lock."""
        self._gone.append((processor, state))

    def close(self) -> None:
        """End the process."""
        self._let_go()
        if self._forked is not None:
            self._forked.add_done_callback(_close_process)
            self._forked = None

    def _may_live(self, process: WorkerProcess) -> bool:
        """Whether its author still has the scope for what it holds."""
        return not process.holds_gpu or (self.gpu is not None and self.gpu.granted(self.domain))

    def _lost(self, source: Source, error: WorkerGone | NoAnswer, seconds: float) -> LogitportError:
        """Replace the process at once; what to tell of it."""
        failure: LogitportError
        if isinstance(error, NoAnswer):
            what = _ASKED.get(self._asked, "its call")
            # What a new process is given within a step has the time of a call, or what is left of it.
            loads = self._asked in _ASKED and seconds >= self.deadlines.load
            option = "--load-timeout-seconds" if loads else "--processor-timeout-seconds"
            reason = f"{what} took over {seconds:.3g} s ({option}), and its worker was ended: look for a loop"
            failure = ProcessorTimedOut(f"processor {source.title}: {reason}", processor=source.title)
        else:
            reason = f"its worker {error}"
            failure = WorkerLost(f"processor {source.title}: {reason}", processor=source.title)
        logger.warning("processor %s of %s: %s", source.title, self.domain, reason)
        self._let_go()
        self.quarantine.failed(self.domain, source.key, reason)
        with suppress(Exception):  # told to the next call, if it lasts
            self._forked = self._zygote().fork()
        return failure

    def _let_go(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        self._gone.clear()


def _close_process(forked: Future[WorkerProcess]) -> None:
    if not forked.cancelled() and forked.exception() is None:
        forked.result().close()
