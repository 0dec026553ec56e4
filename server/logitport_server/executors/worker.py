"""The server's end of one trust domain's worker. Its process is replaced whenever it ends."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakSet

from logitport.errors import LimitExceeded, LogitportError, ProcessorTimedOut, from_proto
from logitport_proto import common_pb2
from logitport_server import descriptors
from logitport_server.dialects import failures
from logitport_server.dialects.failures import ReplyTooLarge, WorkerLost
from logitport_server.executors.worker_process import WorkerGone, WorkerProcess, ZygoteGone, wait_for_any
from logitport_server.worker import messages, replies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from logitport_server.executors.gpu import Gpu
    from logitport_server.executors.slots import WorkerSlots
    from logitport_server.executors.zygote import Zygote
    from logitport_server.principals import TrustDomain
    from logitport_server.registry.quarantine import Quarantine
    from logitport_server.registry.source import Source

    OnReply = Callable[[Any, Sequence[memoryview]], object]
    OnError = Callable[[BaseException], object]

_Reply = TypeVar("_Reply")

logger = logging.getLogger(__name__)

# Names of calls that have the time of a load, for error messages.
_LOADING_CALLS: dict[type[messages.WorkerCall], str] = {
    messages.Host: "loading it",
    messages.Validate: "checking its parameters",
    messages.Start: "its start",
}


@dataclass(frozen=True)
class Deadlines:
    """How long a worker may take, in seconds.

    Attributes:
        call: for the calls of processors in one step.
        load: to unpickle a processor, to create its instance, to check parameters, to build a request's state.
    """

    call: float
    load: float


# A call that was ended after this part of the deadline has had all of it.
_WHOLE = 0.9


class NotStarted(Exception):
    """A call that the worker never began, because its process ended during an earlier call. It may be repeated."""


class _Posted(NamedTuple):
    """A call without a reply."""

    source: Source
    kind: type[messages.WorkerCall]
    expected: type[Any]
    on_reply: OnReply
    on_error: OnError
    at_admission: bool


class Worker:
    """Runs one trust domain's processors in a process that is replaced when it ends.

    Attributes:
        domain: the trust domain.
        lock: held from the first call that is posted to the last reply. All methods but `release`, `close` and
            `end_revoked` need it.
        dialects: the processors that sessions hold.
        idle_since: when the last call ended, in time.monotonic() seconds.
        gpu: the server's GPU, if it can share memory.

    Args:
        zygote: returns the zygote to fork from, which may take as many seconds as its argument. Raises WorkerGone.
        slots: where the right to have a process is acquired; None for no limit.
    """

    def __init__(
        self,
        domain: TrustDomain | None,
        zygote: Callable[[float], Zygote],
        deadlines: Deadlines,
        quarantine: Quarantine,
        gpu: Gpu | None = None,
        slots: WorkerSlots | None = None,
    ) -> None:
        self.domain = domain
        self.gpu = gpu
        self.lock = threading.Lock()
        self.dialects: WeakSet[Any] = WeakSet()
        self.deadlines = deadlines
        self.quarantine = quarantine
        self.idle_since = time.monotonic()
        self._zygote = zygote
        self._slots = slots
        self._forked: Future[WorkerProcess] | None = None
        self._process: WorkerProcess | None = None
        self._posted: deque[_Posted] = deque()
        # Objects that the process can drop: processors (state None), and states of processors.
        self._released: deque[tuple[int, int | None]] = deque()

    @property
    def pending(self) -> bool:
        """Whether a call has no reply yet."""
        return bool(self._posted)

    @property
    def in_use(self) -> bool:
        """Whether sessions hold processors of the worker."""
        return bool(self.dialects)

    def reserve(self, source: Source, seconds: float) -> None:
        """Acquire the lock. Raises ProcessorTimedOut if other calls of the trust domain hold it for so long."""
        if not self.lock.acquire(timeout=seconds):
            raise self.not_begun(source, seconds)

    def not_begun(self, source: Source, seconds: float) -> ProcessorTimedOut:
        """Return the error of a call that has waited these seconds for the worker, and was not begun."""
        name = source.display_name
        reason = (
            f"the worker of its trust domain was busy for {seconds:.3g} s; try again, or give slow processors a tenant "
            "of their own"
        )
        if self._process is None:
            reason = self._not_forked(seconds)
        return ProcessorTimedOut(f"processor {name}: {reason}", processor=name)

    @contextmanager
    def reserved(self, source: Source, seconds: float) -> Iterator[None]:
        """Hold the lock, as `reserve`, for the duration of the context."""
        self.reserve(source, seconds)
        try:
            yield
        finally:
            self.lock.release()

    def prepare(self) -> bool:
        """Return whether `process` would not wait. If there is no process, one is forked without waiting for it."""
        if self._slots is not None and not self._slots.holds(self):
            return True  # `process` waits for a slot, or reports that there is none
        if self._process is not None and not (self._process.alive and self._is_permitted(self._process)):
            self._close_process()
        if self._process is None and self._forked is None:
            try:
                self._forked = self._zygote(0.0).fork()
            except WorkerGone:
                return False  # the zygote is being launched
            except Exception:  # noqa: BLE001 - `process` reports it
                return True
        return self._process is not None or self._forked is None or self._forked.done()

    def process(self, seconds: float) -> WorkerProcess:
        """Return the process; fork one if there is none.

        Raises:
            WorkerLost: that fails.
            ProcessorTimedOut: it takes longer than these seconds.
            LimitExceeded: the server has no descriptor for it, or no slot for this trust domain.
        """
        if self._posted and self._process is not None:  # checked before the first call that is in flight
            return self._process
        deadline = time.monotonic() + seconds
        if self._slots is not None:
            self._slots.acquire(self, seconds)  # ends the process if another party is entitled to its slot
        self.prepare()
        if self._process is None:
            if self._forked is None:
                self._forked = self._fork(deadline - time.monotonic())
            wait([self._forked], max(0.0, deadline - time.monotonic()))
            if not self._forked.done():  # the next call takes its process
                raise ProcessorTimedOut(self._not_forked(seconds))
            forked, self._forked = self._forked, None
            try:
                self._process = forked.result()
            except LimitExceeded:
                raise
            except Exception as error:
                raise WorkerLost(f"no worker for {self.domain}: it {error}") from error
            if not self._is_permitted(self._process):  # forked before the owner lost the scope
                return self.process(deadline - time.monotonic())
        return self._process

    def post(
        self,
        source: Source,
        call: messages.WorkerCall,
        columns: Sequence[bytes],
        expected: type[Any],
        on_reply: OnReply,
        on_error: OnError,
        descriptors: Sequence[int] = (),
        *,
        at_admission: bool = False,
    ) -> None:
        """Queue a call of a processor. The calls are answered in this order, each by one of its functions.

        Args:
            source: the processor.
            call: the message.
            columns: its columns.
            expected: type of the reply.
            on_reply: called with the reply and its columns. An IndexError, TypeError or ValueError means that the
                reply is invalid, and ends the process. Any other LogitportError goes to `on_error`.
            on_error: called with ProcessorTimedOut, WorkerLost, NotStarted, or an error that the worker sent.
            descriptors: file descriptors that travel with the message.
            at_admission: whether the call belongs to the admission of a request, which has a longer deadline.

        Raises:
            LimitExceeded: the message is too large.
        """
        assert self._process is not None  # noqa: S101 - the caller has it from `process`
        if self._released:
            call.released = [self._released.popleft() for _ in range(len(self._released))]
        self._process.post(call, columns, descriptors)
        self._posted.append(_Posted(source, type(call), expected, on_reply, on_error, at_admission))

    def exchange(
        self,
        source: Source,
        call: messages.WorkerCall,
        columns: Sequence[bytes],
        expected: type[_Reply],
        seconds: float,
        descriptors: Sequence[int] = (),
        *,
        at_admission: bool = False,
    ) -> _Reply:
        """Post a call, and wait for its reply and those of all earlier calls. The arguments are those of `post`.

        Raises:
            ProcessorTimedOut: the replies did not arrive within these seconds. The process is killed.
            WorkerLost: the process ended, or its reply is invalid.
            LogitportError: the processor raised, or was refused.
        """
        received: list[_Reply] = []
        errors: list[BaseException] = []
        self.post(
            source,
            call,
            columns,
            expected,
            lambda reply, _: received.append(reply),
            errors.append,
            descriptors,
            at_admission=at_admission,
        )
        self.drain(seconds)
        if errors:
            raise errors[0]
        return received[0]

    def drain(self, seconds: float) -> None:
        """Wait until all calls have a reply or an error. The process is killed if that takes longer."""
        deadline = time.monotonic() + seconds
        self.flush()
        while self._posted and self._process is not None:
            if wait_for_any([self._process], deadline - time.monotonic()):
                self.pump()
            else:
                self.time_out(seconds)

    def flush(self) -> None:
        """Write as many posted calls as the socket takes without blocking."""
        if self._process is not None:
            try:
                self._process.flush()
            except WorkerGone as error:
                self._fail(error)

    def pump(self) -> None:
        """Write posted calls, and handle the replies that have arrived."""
        assert self._process is not None  # noqa: S101 - there are calls without a reply
        try:
            received = self._process.pump()
        except WorkerGone as error:
            self._fail(error)
            return
        for reply, columns in received:
            if not self._posted:  # an earlier reply was invalid
                return
            self._handle(reply, columns)

    def wait_list(self) -> list[WorkerProcess]:
        """Return the process to wait for; none if no call is without a reply."""
        return [self._process] if self._posted and self._process is not None else []

    def time_out(self, seconds: float) -> None:
        """Kill the process, because the oldest call has no reply within these seconds. The later calls fail, too."""
        self._fail(None, seconds)

    def abandon(self) -> None:
        """Kill the process if calls have no reply: nothing waits for them any more."""
        if self._posted:
            calls, self._posted = self._posted, deque()
            self._fail(WorkerGone("was ended: its call was abandoned"))
            for call in calls:
                call.on_error(NotStarted())

    def processor_error(self, source: Source, error: messages.Error) -> LogitportError:
        """Convert an error that the worker sent."""
        proto = common_pb2.Error(code=error.code, message=error.message, remote_traceback=error.trace)  # type: ignore[arg-type]
        return failures.of_processor(from_proto(proto), source.display_name)

    def end_revoked(self) -> None:
        """End an idle process that holds a GPU after its owner has lost the scope. A busy process is not ended."""
        if self.lock.acquire(blocking=False):
            try:
                if self._process is not None and not self._is_permitted(self._process):
                    self._close_process()
            finally:
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

    def _fork(self, seconds: float) -> Future[WorkerProcess]:
        """Request a process. A zygote that has ended is launched again, and has these seconds for that."""
        with descriptors.reported():
            try:
                return self._zygote(seconds).fork()
            except WorkerGone as gone:
                raise WorkerLost(f"no worker for {self.domain}: it {gone}; try again") from gone

    def _not_forked(self, seconds: float) -> str:
        return f"no worker for {self.domain} was started within {seconds:.3g} s; try again"

    def _is_permitted(self, process: WorkerProcess) -> bool:
        """Return whether the owner still has the scope for the GPU, if the process holds one."""
        return not process.holds_gpu or (self.gpu is not None and self.gpu.granted(self.domain))

    def _handle(self, reply: messages.Reply, columns: Sequence[memoryview]) -> None:
        """Pass a reply to the call that it answers."""
        posted, seconds = self._posted[0], self._restart_clock()
        try:
            if isinstance(reply, messages.ErrorReply):
                posted.on_error(self.processor_error(posted.source, reply.error))
            elif isinstance(reply, messages.TooLarge) and posted.expected is messages.EditReply:
                posted.on_error(_too_large(posted.source, reply))
            elif isinstance(reply, posted.expected):
                posted.on_reply(reply, columns)
            else:
                raise TypeError(f"{type(reply).__name__} instead of {posted.expected.__name__}")
        except (IndexError, TypeError, ValueError) as error:
            self._fail(WorkerGone(f"sent an invalid reply: {error}"))
            return
        except LogitportError as error:
            posted.on_error(error)
        if not posted.at_admission:  # an error is charged too: a processor may sleep, then raise
            self.quarantine.record_call(self.domain, posted.source.key, seconds)
        self._posted.popleft()
        self.idle_since = time.monotonic()

    def _restart_clock(self) -> float:
        """Return how long the server has waited for the oldest call."""
        assert self._process is not None  # noqa: S101 - there is a call
        seconds, self._process.waited_seconds = self._process.waited_seconds, 0.0
        return seconds

    def _fail(self, gone: WorkerGone | None, seconds: float = 0.0) -> None:
        """Kill the process, record the failure of the oldest call, and fork another process at once.

        Args:
            gone: why the process is lost; None if it did not reply in time.
            seconds: the time limit that was exceeded.
        """
        calls, self._posted = self._posted, deque()
        waited = self._process.waited_seconds if self._process is not None else 0.0
        self._close_process()
        self.prepare()
        if not calls:
            return
        oldest = calls.popleft()
        oldest.on_error(self._failure(oldest, gone, seconds, waited))
        for call in calls:
            call.on_error(NotStarted())

    def _failure(self, call: _Posted, gone: WorkerGone | None, seconds: float, waited: float) -> LogitportError:
        """Record the loss of the process during a call. Returns the call's error."""
        name = call.source.display_name
        if gone is not None:
            reason = f"its worker {gone}"
            error: LogitportError = WorkerLost(f"processor {name}: {reason}", processor=name)
        else:
            what = _LOADING_CALLS.get(call.kind, "its call")
            option = "--load-timeout-seconds" if call.at_admission else "--processor-timeout-seconds"
            reason = f"{what} took over {seconds:.3g} s ({option}), and its worker was ended: look for a loop"
            if cut_short := not call.at_admission and waited < _WHOLE * self.deadlines.call:
                reason = f"{what} was not finished after {waited:.3g} s, when the time of the step ({option}) was up"
            error = ProcessorTimedOut(f"processor {name}: {reason}", processor=name)
            if cut_short:  # earlier calls have used up the time, so only the time of this one is charged
                logger.warning("processor %s of %s: %s", name, self.domain, reason)
                self.quarantine.record_call(self.domain, call.source.key, waited)
                return error
        logger.warning("processor %s of %s: %s", name, self.domain, reason)
        if not isinstance(gone, ZygoteGone):
            self.quarantine.record_failure(self.domain, call.source.key, reason, seconds=waited)
        return error

    def _close_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
        self._released.clear()


def _too_large(source: Source, reply: messages.TooLarge) -> ReplyTooLarge:
    if reply.size_bytes <= replies.MAX_EDITS_BYTES:
        raise ValueError(f"edits of {reply.size_bytes} bytes, which fit into a reply, were not sent")
    return ReplyTooLarge(
        f"processor {source.display_name}: the edits of one call take {reply.size_bytes} bytes, the limit is "
        f"{replies.MAX_EDITS_BYTES} bytes; make edits with fewer ids",
        processor=source.display_name,
    )


def _close_forked(forked: Future[WorkerProcess]) -> None:
    if not forked.cancelled() and forked.exception() is None:
        forked.result().close()
