"""A step that was sent to the server and is not yet applied."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logitport.core import tensors
from logitport.errors import (
    InvalidArgument,
    LogitportError,
    NotFound,
    RequestsFailed,
    ServerUnavailable,
    StateLost,
    warn_all_denied,
)
from logitport.ops import apply_edits
from logitport.session.steps.program_runs import ProgramRuns
from logitport.session.steps.step_frame import step_frame
from logitport.session.steps.step_reply import ReplyReader, StepResult, read_events
from logitport.session.steps.step_reports import StepReports
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.core.edits import Edits
    from logitport.core.row_events import RequestEvent
    from logitport.session.connection.frame_channel import FrameChannel, SentStep
    from logitport.session.handle import Handle
    from logitport.session.logits.logits_transfer import LogitsTransfer, Placement
    from logitport.session.requests.session_requests import SessionRequests
    from logitport.session.steps.step_content import StepContent
    from logitport.session.steps.step_reply import Answer, CheckedReply


class StepContext:
    """Parts of a session that its steps share, and the width of its logits."""

    __slots__ = ("channel", "programs", "replies", "reports", "requests", "transfer", "vocab_size")

    def __init__(
        self, channel: FrameChannel, requests: SessionRequests, transfer: LogitsTransfer, vocab_size: int
    ) -> None:
        self.channel = channel
        self.requests = requests
        self.transfer = transfer
        self.vocab_size = vocab_size
        self.programs = ProgramRuns()
        self.reports = StepReports()
        self.replies = ReplyReader(requests.table, vocab_size, transfer.datatype)


class PendingStep:
    """A step that was sent; its reply may or may not have arrived. Returned by `Session.step`.

    Attributes:
        superseded: whether another step was begun, so that this one cannot be finished any more.
    """

    superseded = False
    # The reply to the step, or to its repetition.
    _answer: Answer | None = None
    _applied = False
    # Whether the reports of the requests include its events, and its failures.
    _has_noted_events = _has_noted_failures = False

    def __init__(
        self, context: StepContext, content: StepContent, sent: SentStep[Answer], entering: Sequence[Handle] = ()
    ) -> None:
        self._context = context
        self._content = content
        self._sent = sent
        # Requests with an admission that had not ended when the step was sent.
        self._entering = entering
        self._connection = context.channel.connections

    def apply(self, logits: Any, *, check: bool = True) -> StepResult:
        """Finish the step: receive the edits, and process `logits` in place.

        Args:
            logits: float[rows, vocab_size] of the session's dtype, a torch tensor on any device or a numpy array.
                Only rows with processors that read logits are sent, and not if they are in `Session.logits_buffer`.
            check: raise if a request failed, and emit a ProcessorWarning if edits have denied every id of a row; with
                False, look at `failures` and `all_denied_rows` of the result.

        Raises:
            RequestsFailed: requests with on_error="abort" failed; the others were processed.
            InvalidArgument: wrong shape or dtype, a retired buffer (see `Session.logits_buffer`), or logits that
                require gradients while grad mode is on; the logits are unchanged, and `apply` may be called again.
            InvalidArgument: the step was applied already, or another step was begun.
        """
        tensors.check_gradient(logits)
        context = self._context
        buffer = context.transfer.buffer
        answer: Answer | None = None
        if not (self._applied or self.superseded):
            if self._entering:
                answer = context.requests.with_reconnect(self._synchronized_answer)
            else:
                self._answer = answer = self._answer or context.channel.reply_to(self._sent)
        has_retired = buffer.is_used and buffer.has_retired()
        # Most steps have nothing else to do. The core changes no logits that `_check` would refuse.
        if answer is not None and answer.compiled is not None and not has_retired and answer.compiled.apply(logits):
            self._applied = True
            result = answer.result
            if answer.compiled.events is not None and not self._has_noted_events:
                self._note_events(answer.events)
            if check and answer.compiled.all_denied_rows:
                _report(result)
            return result
        result = self._apply(logits)
        if check:
            _report(result)
        return result

    def _apply(self, logits: Any) -> StepResult:
        self._check(logits)
        context, content = self._context, self._content
        answer, placed = context.requests.with_reconnect(lambda: self._send_logits_rows(logits))
        self._applied = True
        result = answer.result
        failed: dict[Handle, LogitportError] = {}
        try:
            if answer.later_edits is None:
                apply_edits(answer.edits, logits)  # while the server processes the rows that were sent
            else:
                edits = [answer.edits, *answer.later_edits]
                earlier = result.failures | result.skipped
                failed = context.programs.apply(logits, content.rows, content.drafts, edits, earlier)
        finally:
            if placed is not None:
                result = result.combined(self._receive_logits_rows(logits, answer.logits_rows, placed))
        if failed:
            result = self._without(result, failed, answer.names)
        self._note_failures(result)
        return result

    def edits(self, *, check: bool = True) -> Edits:
        """Wait for the edits and return them without applying them, for an engine that broadcasts them to its ranks.

        The rest of the reply is in `result`.

        Args:
            check: as in `apply`; with False, look at `result`.

        Raises:
            RequestsFailed: as `apply`.
            InvalidArgument: processors of some rows read logits (`Handle.reads_logits`): finish the step with `apply`.
        """
        answer = self._answer_without_logits()
        if answer.later_edits is not None:
            raise InvalidArgument(
                "programs of the step read logits, so edits alone are not enough: finish the step with apply(logits)"
            )
        self._note_failures(answer.result)
        if check:
            _report(answer.result)
        return answer.edits

    def parts(self) -> list[Edits]:
        """Wait for the edits and return them without applying them, also if programs stand between them.

        Returns:
            The edits before the first program of each row's chain (`Handle.programs`), after it, after the second one,
            ... At least one element. The rest of the reply is in `result`; no failure raises.

        Raises:
            InvalidArgument: processors of some rows read logits on the server.
        """
        answer = self._answer_without_logits()
        self._note_failures(answer.result)
        return [answer.edits, *(answer.later_edits or ())]

    @property
    def reads_logits(self) -> bool:
        """Whether processors of the step's requests read logits, so that `apply` must finish it. Waits for the reply.

        Without requests of `Session.enter`, it is known from `Handle.reads_logits`.
        """
        if self._entering:
            self._context.requests.with_reconnect(self._synchronized_answer)
        return any(handle.reads_logits for handle in self._content.handles)

    @property
    def result(self) -> StepResult | None:
        """Result of the rows that no processor reads; None until the reply has been read."""
        answer = self._answer or self._sent.reply
        return None if answer is None else answer.result

    def _answer_without_logits(self) -> Answer:
        """Return the answer of a step of which the server reads no logits. Raises InvalidArgument if it does."""
        answer = self._context.requests.with_reconnect(self._synchronized_answer)
        if answer.logits_rows:
            raise InvalidArgument(
                f"processors read the logits of rows {answer.logits_rows}, so edits alone are not enough: "
                "finish the step with apply(logits)"
            )
        return answer

    def _synchronized_answer(self) -> Answer:
        """Return the answer, once the server has the same history as the client for every request.

        Histories that the server lacks, or has with other tokens, are sent again first.

        Raises:
            ServerUnavailable: the connection was lost; the call may be repeated on a new connection.
        """
        if self.superseded:
            raise InvalidArgument("another step was begun; finish a step before the next one")
        if self._answer is None:
            self._answer = self._context.channel.reply_to(self._sent)
        if self._answer is None and (error := self._sent.error) is not None:
            if not isinstance(error, ServerUnavailable) or error.timed_out:
                raise error
            self._answer = self._repeat()
            self._sent.error = None  # its traceback refers to the session
        elif self._answer is None:
            self._answer = self._answer_after_admissions()
        elif self._answer_is_lost():
            self._answer = self._repeat()
        if out_of_sync := [handle for handle in self._answer.out_of_sync if not handle.removed]:
            self._answer = replace(self._repeat(out_of_sync), out_of_sync=())
        if not self._has_noted_events:
            self._has_noted_events = True
            self._note_events(self._answer.events)
        return self._answer

    def _answer_after_admissions(self) -> Answer:
        """Return the answer to a step with requests whose admission had not ended. Raises as `_synchronized_answer`."""
        context = self._context
        if self._connection == context.channel.connections:
            context.requests.admissions.end_entering(self._entering)
            answer = context.channel.read_later(self._sent, context.replies.compiled(self._content))
            if not any(self._is_stale(answer, handle) for handle in self._entering if not handle.removed):
                return answer
        return self._repeat()

    def _is_stale(self, answer: Answer, handle: Handle) -> bool:
        """Whether the server computed the step in another state of this request than that after its admission."""
        error = answer.result.failures.get(handle)
        if handle in self._context.requests.table.lost:  # also if its programs are refused here
            return error is None
        return handle.programs_on_server or isinstance(error, NotFound)

    def _answer_is_lost(self) -> bool:
        """Whether the server requested logits, or left programs to the engine, on a connection that was replaced.

        The new server has no such step, and may divide the programs in another way.
        """
        answer, channel = self._answer, self._context.channel
        requested = answer is not None and (answer.logits_rows or answer.later_edits is not None)
        return bool(requested) and self._connection != channel.connections

    def _repeat(self, out_of_sync: Sequence[Handle] = ()) -> CheckedReply:
        """Send the step again, without new ids, after the histories, which include them already."""
        context, content = self._context, self._content
        context.requests.resend(out_of_sync)
        context.requests.admissions.end_entering(content.handles)
        context.requests.admissions.end_restoring(content.handles)
        nothing_new: dict[Handle, Sequence[int]] = dict.fromkeys(content.handles, ())
        frame = step_frame(nothing_new, content.drafts, content.rows, context.vocab_size)
        reply = context.channel.exchange(processing_pb2.SessionRequest(step=frame)).edits
        answer = context.replies.read_message(content, reply)
        self._connection = context.channel.connections
        return answer

    def _send_logits_rows(self, logits: Any) -> tuple[Answer, Placement | None]:
        """Return the answer, and where the requested rows were put; None if the server requested no rows.

        Raises the errors of `_synchronized_answer`.
        """
        answer = self._synchronized_answer()
        return answer, self._send(logits, answer.logits_rows) if answer.logits_rows else None

    def _send(self, logits: Any, logits_rows: Sequence[int]) -> Placement:
        context, frame = self._context, processing_pb2.SessionRequest()
        placed = context.transfer.put(logits, logits_rows, frame.logits.logits)
        context.channel.send(frame)
        for row in logits_rows:
            handle = self._content.rows[row][0]
            handle.processed = not handle.follows_from_history
        return placed

    def _receive_logits_rows(self, logits: Any, logits_rows: Sequence[int], placed: Placement) -> StepResult:
        """Receive the processed rows. If the connection is lost here, their requests fail with StateLost.

        The processors may or may not have run, so their state is unknown.
        """
        context = self._context
        try:
            try:
                edited = context.channel.receive().logits
            except InvalidArgument:  # the server cannot read the memory that holds the logits
                if context.transfer.refuse(placed):
                    return self._receive_logits_rows(logits, logits_rows, self._send(logits, logits_rows))
                raise
        except ServerUnavailable as error:
            if error.timed_out:
                raise
            lost = StateLost(f"the connection was lost while logits of this request were being processed: {error}")
            return StepResult(dict.fromkeys((self._content.rows[row][0] for row in logits_rows), lost), {}, {}, ())
        context.transfer.fetch(logits, logits_rows, placed, edited.logits)
        self._note_events(read_events(edited.events))
        return context.replies.result(edited, self._content.handles)

    def _without(
        self, result: StepResult, failed: Mapping[Handle, LogitportError], names: Mapping[str, str]
    ) -> StepResult:
        """Add requests with a failed program to the result. The server drops those that have not on_error="skip"."""
        failed = {handle: error for handle, error in failed.items() if handle not in result.failures}
        aborted = {handle: error for handle, error in failed.items() if not handle.skips}
        requests = self._context.requests
        requests.fail({handle: error for handle, error in aborted.items() if not handle.removed})
        applied = Counter(result.rows_applied)
        for handle, _ in self._content.rows:
            if handle in failed:
                applied.subtract(names.get(key, key) for key in handle.processors)
        return StepResult(
            result.failures | aborted,
            result.skipped | {handle: error for handle, error in failed.items() if handle.skips},
            {name: rows for name, rows in applied.items() if rows > 0},
            result.all_denied_rows,
        )

    def _note_events(self, events: Sequence[RequestEvent]) -> None:
        if events:
            self._context.reports.add(events, self._content.handles, self._content.drafts)

    def _note_failures(self, result: StepResult) -> None:
        if (result.failures or result.skipped) and not self._has_noted_failures:
            self._has_noted_failures = True
            content = self._content
            self._context.reports.add_failures(result.failures, result.skipped, content.rows, content.drafts)

    def _check(self, logits: Any) -> None:
        if self._applied:
            raise InvalidArgument("this step was applied already; begin the next one with Session.step")
        rows, width = tensors.check_matrix(logits)
        datatype = tensors.datatype_of(logits.dtype)
        transfer, expected_rows, vocab_size = self._context.transfer, len(self._content.rows), self._context.vocab_size
        if rows != expected_rows or width != vocab_size or datatype != transfer.datatype:
            raise InvalidArgument(
                f"logits are {datatype}[{rows}, {width}]; this step needs "
                f"{transfer.datatype}[{expected_rows}, {vocab_size}]"
            )
        transfer.buffer.check(logits)


def _report(result: StepResult) -> None:
    """Raise RequestsFailed, or emit a ProcessorWarning at the caller of the caller."""
    if result.failures:
        raise RequestsFailed(result.failures, result)
    warn_all_denied(result.all_denied_rows, stacklevel=3)
