"""A queue of calls to one worker: each is answered by its reply, or by an error that is charged to its processor."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from logitport.errors import LogitportError, ProcessorFailed, from_proto
from logitport.system.frame_limits import MAX_WORKER_EDITS_BYTES
from logitport_proto import common_pb2
from logitport_server.executors.output_log import MAX_TEXT_LENGTH, OutputLog
from logitport_server.executors.worker_processes.process_holder import ProcessHolder
from logitport_server.executors.worker_processes.worker_process import (
    ProcessPoll,
    WorkerGone,
    WorkerProcess,
    ZygoteGone,
)
from logitport_server.worker import messages, stack
from logitport_session.dialects import failures
from logitport_session.dialects.failures import ReplyTooLarge, WorkerLost
from logitport_session.resources import load_time
from logitport_session.trust.isolation import NotStarted
from logitport_session.trust.principals import log_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.executors.worker_processes.gpu import Gpu
    from logitport_server.executors.worker_processes.process_holder import ForksWorkers
    from logitport_server.executors.worker_processes.slots import WorkerSlots
    from logitport_server.registry.quarantine import Quarantine
    from logitport_session.dialects import RequestContext
    from logitport_session.processor_sources.source import Source
    from logitport_session.trust.principals import TrustDomain

    OnReply = Callable[[Any, Sequence[memoryview]], object]
    OnError = Callable[[BaseException], object]

_Reply = TypeVar("_Reply")

logger = logging.getLogger(__name__)

# Names of calls that have the time of a load, for error messages.
_LOADING_CALLS: dict[type[messages.WorkerCall], str] = {
    messages.LoadProcessor: "loading it",
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


class _Posted(NamedTuple):
    """A call without a reply."""

    source: Source
    kind: type[messages.WorkerCall]
    expected: type[Any]
    on_reply: OnReply
    on_error: OnError
    at_admission: bool


class Worker(ProcessHolder):
    """Calls one trust domain's processors in its process, in the order of posting.

    All methods but `release`, `close` and `end_revoked` need the lock, from the first call that is posted to the last
    reply.

    Args:
        deadlines: how long the process may take.
        quarantine: charged with its failures.
        output: keeps what processors print.

    Attributes:
        states: by its number, the request of each state that processors have here.
        reply_seconds: how long the server has waited for the reply that is being handled, or for the one that has not
            come; None while calls fail that had not begun.
    """

    def __init__(
        self,
        domain: TrustDomain | None,
        zygote: Callable[[float], ForksWorkers],
        deadlines: Deadlines,
        quarantine: Quarantine,
        gpu: Gpu | None = None,
        slots: WorkerSlots | None = None,
        output: OutputLog | None = None,
    ) -> None:
        super().__init__(domain, zygote, gpu, slots)
        self.deadlines = deadlines
        self.quarantine = quarantine
        self.states: dict[int, RequestContext] = {}
        self.reply_seconds: float | None = None
        self.output = output or OutputLog()
        self._posted: deque[_Posted] = deque()

    @property
    def pending(self) -> bool:
        """Whether a call has no reply yet."""
        return bool(self._posted)

    def called_processor(self) -> str:
        try:
            return self._posted[0].source.display_name
        except IndexError:
            return ""

    def has_requests(self, besides: RequestContext | None = None) -> bool:
        """Whether requests have state in the worker, besides the given one. Needs no lock if none is given."""
        if besides is None:
            return bool(self.states)
        try:
            return any(context is not besides for context in self.states.values())
        except RuntimeError:  # another thread has released a state in the meantime
            return True

    @property
    def load_seconds(self) -> float:
        """How long code of the present admission may take. Raises ProcessorFailed if its time is up."""
        return load_time.left(self.deadlines.load)

    def admission_time(self, besides: RequestContext | None = None) -> tuple[float, bool]:
        """Return how many seconds the code of an admission may take here, and whether that is the time of a load.

        It has only the time of a call if requests besides the given one have state here, because their calls wait.
        """
        is_alone = not self.has_requests(besides)
        return load_time.left(self.deadlines.load if is_alone else self.deadlines.call), is_alone

    def creates_quickly(self, key: str) -> bool:
        """Whether the process has loaded the processor, and has an instance or creates one quickly. Needs no lock."""
        process = self._process
        return process is not None and (key in process.quick or key in process.kept)

    def process(self, seconds: float) -> WorkerProcess:
        """Return the process. Forks one if needed. Raises what `ProcessHolder.process` raises."""
        # Checked by `prepare`, or before the first call that is in flight.
        if self._process is not None and (self._is_prepared or self._posted):
            return self._process
        return super().process(seconds)

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
            on_error: called with ProcessorFailed, WorkerLost, NotStarted, or an error that the worker sent.
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
        """Post a call, and wait for the replies to it and to all earlier calls. The arguments are as in `post`.

        Raises:
            ProcessorFailed: the replies did not arrive within these seconds. The process is killed.
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
        poll = ProcessPoll()
        if self._process is not None:
            poll.add(self._process)
        while self._posted and self._process is not None:
            if poll.wait(deadline - time.monotonic()):
                self.pump()
            else:
                self.time_out()

    def flush(self) -> WorkerProcess | None:
        """Write as many posted calls as the socket takes without blocking.

        Returns the process to wait for; None if no call is without a reply.
        """
        self._is_prepared = False
        if self._process is not None:
            try:
                self._process.flush()
            except WorkerGone as error:
                self._fail(error)
        return self._process if self._posted else None

    def pump(self) -> bool:
        """Write posted calls, and handle the replies that have arrived. Returns whether a call has no reply yet."""
        assert self._process is not None  # noqa: S101 - the caller has it from `process`
        try:
            received = self._process.pump()
        except WorkerGone as error:
            self._fail(error)
            return False
        for reply, columns in received:
            if not self._posted:  # an earlier reply was invalid
                break
            self._handle(reply, columns)
        return bool(self._posted)

    def request_stack(self) -> None:
        """Let the process write where it is: `time_out` is called next, perhaps after other workers'."""
        if self._process is not None:
            self._process.request_stack()

    def time_out(self) -> None:
        """Kill the process, because the oldest call has no reply in time. The later calls fail, too."""
        self._fail(None)

    def abandon(self) -> None:
        """Kill the process if calls have no reply: nothing waits for them any more."""
        if self._posted:
            calls, self._posted = self._posted, deque()
            self._fail(WorkerGone("was ended: its call was abandoned"))
            self.reply_seconds = None
            for call in calls:
                call.on_error(NotStarted())

    def processor_error(self, source: Source, error: messages.Error) -> LogitportError:
        """Convert an error that the worker sent."""
        proto = common_pb2.Error(
            code=error.code,  # type: ignore[arg-type]
            message=error.message,
            remote_traceback=error.trace,
            output=error.output,
        )
        return failures.of_processor(from_proto(proto), source.display_name)

    def release(self, processor: int, state: int | None) -> None:
        """Let the process drop a state, or a processor, at its next call. Does not need the lock."""
        self._released.append((processor, state))

    def _handle(self, reply: messages.Reply, columns: Sequence[memoryview]) -> None:
        """Pass a reply to the call that it answers."""
        posted, process = self._posted[0], self._process
        assert process is not None  # noqa: S101 - it has sent the reply
        seconds = self.reply_seconds = process.waited_seconds
        process.waited_seconds = 0.0
        if reply.output:
            self.output.record(self.domain, posted.source, reply.output[:MAX_TEXT_LENGTH])
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

    def _fail(self, gone: WorkerGone | None) -> None:
        """Kill the process, record the failure of the oldest call, and fork another process at once.

        `gone` is why it is lost; None if it did not reply in time.
        """
        calls, self._posted = self._posted, deque()
        waited = self._process.waited_seconds if self._process is not None else 0.0
        frames = self._process.stack() if calls and gone is None and self._process is not None else []
        self._close_process()
        self.prepare()
        if not calls:
            return
        oldest = calls.popleft()
        self.reply_seconds = waited
        error = self._failure(oldest, gone, waited)
        if frames:
            error.message += f"; it was at {stack.of_processor(frames)}"
            error.remote_traceback = stack.formatted(frames, oldest.source.shown_source)
        oldest.on_error(error)
        self.reply_seconds = None
        for call in calls:
            call.on_error(NotStarted())

    def _failure(self, call: _Posted, gone: WorkerGone | None, waited: float) -> LogitportError:
        """Record the loss of the process during a call. Returns the call's error."""
        name = call.source.display_name
        if gone is not None:
            reason = f"its worker {gone}"
            error: LogitportError = WorkerLost(f"processor {name}: {reason}", processor=name)
        else:
            what = _LOADING_CALLS.get(call.kind, "its call")
            # The call had what other calls of the step, or other parts of the admission, had left of the limit.
            option, limit, whole = "--processor-timeout-seconds", self.deadlines.call, "step"
            if call.at_admission:
                option, limit, whole = "--load-timeout-seconds", self.deadlines.load, "admission"
            reason = f"{what} took over {limit:.3g} s ({option}), and its worker was ended: look for a loop"
            if cut_short := waited < _WHOLE * limit:
                reason = f"{what} was not finished after {waited:.3g} s, when the time of the {whole} ({option}) was up"
            error = ProcessorFailed(f"processor {name}: {reason}", processor=name, code=ProcessorFailed.TIMED_OUT)
            if cut_short:  # other calls have used up the time, so only the time of this one is charged
                logger.warning("processor %s of %s: %s", name, self.domain, reason)
                self.quarantine.record_call(self.domain, call.source.key, waited)
                return error
        logger.warning(
            "processor %s of %s: %s",
            name,
            self.domain,
            reason,
            extra={"event": "worker_lost", "processor": call.source.key, **log_fields(self.domain)},
        )
        if not isinstance(gone, ZygoteGone):
            self.quarantine.record_failure(self.domain, call.source.key, reason, seconds=waited)
        return error


def _too_large(source: Source, reply: messages.TooLarge) -> ReplyTooLarge:
    if reply.size_bytes <= MAX_WORKER_EDITS_BYTES:
        raise ValueError(f"edits of {reply.size_bytes} bytes, which fit into a reply, were not sent")
    return ReplyTooLarge(
        f"processor {source.display_name}: the edits of one call take {reply.size_bytes} bytes, the limit is "
        f"{MAX_WORKER_EDITS_BYTES} bytes; make edits with fewer ids",
        processor=source.display_name,
    )
