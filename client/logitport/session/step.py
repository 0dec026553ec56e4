"""A step that was sent to the server and is not yet applied."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from logitport.calls import rows_applied, split_failures, unpack_int32
from logitport.compiled import core
from logitport.core import tensors
from logitport.core.edits import NO_OFFSETS, Edits
from logitport.errors import (
    InternalError,
    InvalidArgument,
    InvalidLogits,
    LogitportError,
    RequestsFailed,
    ServerUnavailable,
    StateLost,
)
from logitport.ops.apply_edits import apply_edits, uses_core
from logitport.output import ProcessorOutput
from logitport.session.frames import Handle, step_frame
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.session.channel import FrameChannel
    from logitport.session.logits_buffer import LogitsTransfer, Placement
    from logitport.session.program_runs import ProgramRuns
    from logitport.session.requests import SessionRequests


@dataclass(frozen=True)
class StepResult:
    """Result of a step.

    Attributes:
        failures: the error of each request that failed; the engine must end these. Their rows are unspecified.
        skipped: the error of each failed request with on_error="skip"; their rows are unchanged.
        rows_applied: number of rows by processor: a built-in's name, or the `ProcessorRef.display_name` of a shipped
            one (its class and the beginning of its digest).
        all_denied_rows: rows in which edits left no id allowed.
        outputs: what processors in workers printed and logged, if `Session.step` asked for it: one for each call, at
            most 64 of a reply. `Client.logs` returns it, too, and that of admissions.
    """

    failures: dict[Handle, LogitportError]
    skipped: dict[Handle, LogitportError]
    rows_applied: dict[str, int]
    all_denied_rows: tuple[int, ...]
    outputs: tuple[ProcessorOutput, ...] = ()


class PendingStep:
    """A step that was sent; its reply may or may not have arrived. Returned by `Session.step`.

    Attributes:
        superseded: whether another step was begun, so that this one cannot be finished any more.
    """

    def __init__(
        self,
        channel: FrameChannel,
        requests: SessionRequests,
        transfer: LogitsTransfer,
        programs: ProgramRuns,
        handles: Sequence[Handle],
        drafts: Mapping[Handle, Sequence[int]],
        rows: Sequence[tuple[Handle, int]],
        vocab_size: int,
        *,
        wants_output: bool = False,
    ) -> None:
        self._wants_output = wants_output
        self._channel = channel
        self._connection = channel.connections
        self._requests = requests
        self._transfer = transfer
        self._programs = programs
        self._vocab_size = vocab_size
        self._handles = handles
        self._drafts = drafts
        self._rows = rows
        self._answer: _Answer | None = None
        self._error: Exception | None = None
        self._applied = False
        self.superseded = False

    def apply(self, logits: Any, *, check: bool = True) -> StepResult:
        """Finish the step: receive the edits, and process `logits` in place.

        Args:
            logits: float[rows, vocab_size] of the session's dtype, a torch tensor on any device or a numpy array.
                Only rows with processors that read logits are sent, and not if they are in `Session.logits_buffer`.
            check: raise if a request failed; with False, look at `failures` of the result.

        Raises:
            RequestsFailed: requests with on_error="abort" failed; the others were processed.
            InvalidLogits: wrong shape or dtype, or a retired buffer, see `Session.logits_buffer`; the logits are
                unchanged, and `apply` may be called again.
            InvalidArgument: the step was applied already, or another step was begun.
        """
        if self._answer is None and not self.superseded:
            self._channel.drain_reply()
        answer, buffer = self._answer, self._transfer.buffer
        may_fail = self._applied or self.superseded or (buffer.is_used and buffer.has_retired())
        # Most steps have nothing else to do. The core changes no logits that `_check` would refuse.
        if answer is not None and answer.compiled is not None and not may_fail and answer.compiled.apply(logits):
            self._applied = True
            result = answer.result
        else:
            result = self._apply(logits)
        if check and result.failures:
            raise RequestsFailed(result.failures, result)
        return result

    def _apply(self, logits: Any) -> StepResult:
        self._check(logits)
        answer, placed = self._requests.with_reconnect(lambda: self._send_logits_rows(logits))
        self._applied = True
        result = answer.result
        failed: dict[Handle, LogitportError] = {}
        try:
            if answer.later_edits is None:
                apply_edits(answer.edits, logits)  # while the server processes the rows that were sent
            else:
                edits = [answer.edits, *answer.later_edits]
                earlier = result.failures | result.skipped
                failed = self._programs.apply(logits, self._rows, self._drafts, edits, earlier)
        finally:
            if placed is not None:
                result = _combine(result, self._receive_logits_rows(logits, answer.logits_rows, placed))
        if failed:
            result = self._without(result, failed, answer.names)
        return result

    def edits(self, *, check: bool = True) -> Edits:
        """Wait for the edits and return them without applying them, for an engine that broadcasts them to its ranks.

        The rest of the reply is in `result`.

        Args:
            check: raise if a request failed; with False, look at `failures` of `result`.

        Raises:
            RequestsFailed: as `apply`.
            InvalidArgument: processors of some rows read logits (`Handle.reads_logits`): finish the step with `apply`.
        """
        answer = self._requests.with_reconnect(self._synchronized_answer)
        if answer.logits_rows:
            raise InvalidArgument(
                f"processors read the logits of rows {answer.logits_rows}, so edits alone are not enough: "
                "finish the step with apply(logits)"
            )
        if answer.later_edits is not None:
            raise InvalidArgument(
                "programs of the step read logits, so edits alone are not enough: finish the step with apply(logits)"
            )
        if check and answer.result.failures:
            raise RequestsFailed(answer.result.failures, answer.result)
        return answer.edits

    @property
    def result(self) -> StepResult | None:
        """Result of the rows that no processor reads; None until the reply has been read."""
        return None if self._answer is None else self._answer.result

    def take_reply(self, reply: processing_pb2.SessionResponse | Exception) -> None:
        """Parse the reply, or keep the error that replaced it; `apply` raises that error."""
        if isinstance(reply, Exception):
            self._error = reply
        else:
            self._answer = self._read(reply.edits)

    def _synchronized_answer(self) -> _Answer:
        """Return the answer, once the server has the same history as the client for every request.

        Histories that the server lacks, or has with other tokens, are sent again first.

        Raises:
            ServerUnavailable: the connection was lost; the call may be repeated on a new connection.
        """
        if self.superseded:
            raise InvalidArgument("another step was begun; finish a step before the next one")
        if self._answer is None:
            self._channel.drain_reply()
        if isinstance(self._error, ServerUnavailable) or self._answer_is_lost():
            self._answer, self._error = self._repeat(), None
        if self._error is not None:
            raise self._error
        assert self._answer is not None  # noqa: S101 - take_reply() leaves one of the two
        if out_of_sync := [handle for handle in self._answer.out_of_sync if not handle.removed]:
            self._answer = replace(self._repeat(out_of_sync), out_of_sync=[])
        return self._answer

    def _answer_is_lost(self) -> bool:
        """Whether the server requested logits, or left programs to the engine, on a connection that was replaced.

        The new server has no such step, and may divide the programs in another way.
        """
        answer = self._answer
        requested = answer is not None and (answer.logits_rows or answer.later_edits is not None)
        return bool(requested) and self._connection != self._channel.connections

    def _repeat(self, out_of_sync: Sequence[Handle] = ()) -> _Answer:
        """Send the step again, without new ids, after the histories, which include them already."""
        self._requests.resend(out_of_sync)
        nothing_new: dict[Handle, Sequence[int]] = dict.fromkeys(self._handles, ())
        frame = step_frame(nothing_new, self._drafts, self._rows, self._vocab_size)
        frame.wants_output = self._wants_output
        answer = self._read(self._channel.exchange(processing_pb2.SessionRequest(step=frame)).edits)
        self._connection = self._channel.connections
        return answer

    def _send_logits_rows(self, logits: Any) -> tuple[_Answer, Placement | None]:
        """Return the answer, and where the requested rows were put; None if the server requested no rows.

        Raises as `_synchronized_answer`.
        """
        answer = self._synchronized_answer()
        return answer, self._send(logits, answer.logits_rows) if answer.logits_rows else None

    def _send(self, logits: Any, logits_rows: Sequence[int]) -> Placement:
        frame = processing_pb2.SessionRequest()
        placed = self._transfer.put(logits, logits_rows, frame.logits.logits)
        self._channel.send(frame)
        for row in logits_rows:
            handle = self._rows[row][0]
            handle.processed = not handle.follows_from_history
        return placed

    def _receive_logits_rows(self, logits: Any, logits_rows: Sequence[int], placed: Placement) -> StepResult:
        """Receive the processed rows. If the connection is lost here, their requests fail with StateLost.

        The processors may or may not have run, so their state is unknown.
        """
        try:
            try:
                edited = self._channel.receive().logits
            except InvalidLogits:
                if self._transfer.refuse(placed):
                    return self._receive_logits_rows(logits, logits_rows, self._send(logits, logits_rows))
                raise
            if placed.buffer is None:
                self._check_edited(edited.logits, len(logits_rows))
        except ServerUnavailable as error:
            lost = StateLost(f"the connection was lost while logits of this request were being processed: {error}")
            return StepResult(dict.fromkeys((self._rows[row][0] for row in logits_rows), lost), {}, {}, ())
        self._transfer.fetch(logits, logits_rows, placed, edited.logits)
        return self._result(edited)

    def _without(
        self, result: StepResult, failed: Mapping[Handle, LogitportError], names: Mapping[str, str]
    ) -> StepResult:
        """Add requests with a failed program to the result. The server drops those that have not on_error="skip"."""
        failed = {handle: error for handle, error in failed.items() if handle not in result.failures}
        aborted = {handle: error for handle, error in failed.items() if not handle.skips}
        self._requests.fail({handle: error for handle, error in aborted.items() if not handle.removed})
        applied = Counter(result.rows_applied)
        for handle, _ in self._rows:
            if handle in failed:
                applied.subtract(names.get(key, key) for key in handle.processors)
        return StepResult(
            result.failures | aborted,
            result.skipped | {handle: error for handle, error in failed.items() if handle.skips},
            {name: rows for name, rows in applied.items() if rows > 0},
            result.all_denied_rows,
            result.outputs,
        )

    def _read(self, reply: processing_pb2.StepEdits) -> _Answer:
        """Parse the reply and check every field that the client uses."""
        logits_rows = unpack_int32(reply.logits_rows).tolist() if reply.logits_rows else []
        ascending = logits_rows == sorted(set(logits_rows))
        if logits_rows and not (ascending and logits_rows[0] >= 0 and logits_rows[-1] < len(self._rows)):
            raise InternalError(
                f"StepEdits.logits_rows: {logits_rows} are not ascending rows of a step of {len(self._rows)} rows"
            )
        later, names = self._read_later_edits(reply)
        out_of_sync = {
            failure.slot for failure in reply.failures if failure.error.code == common_pb2.ERROR_CODE_NEED_SYNC
        }
        packed = reply.edits
        columns = packed.rows, packed.offsets or NO_OFFSETS, packed.ids, packed.values, packed.kinds
        compiled = None
        if not (logits_rows or out_of_sync or later is not None) and uses_core():
            rows, offsets, ids, values, kinds = columns
            shape, datatype = (len(self._rows), self._vocab_size), self._transfer.core_datatype
            compiled = core.read_edits(rows, kinds, offsets, ids, values, *shape, datatype)
        return _Answer(
            columns=columns,
            checked=Edits.from_columns(columns, len(self._rows), self._vocab_size) if compiled is None else None,
            compiled=compiled,
            later_edits=later,
            names=names,
            logits_rows=logits_rows,
            out_of_sync=[handle for handle in self._handles if handle.slot in out_of_sync] if out_of_sync else [],
            result=self._result(reply),
        )

    def _read_later_edits(self, reply: processing_pb2.StepEdits) -> tuple[list[Edits] | None, dict[str, str]]:
        """Read `later_edits` and `names` of the answer."""
        programs = 0
        if self._requests.table.has_programs:
            programs = max((len(handle.programs) for handle in self._handles), default=0)
        if len(reply.later_edits) > programs:
            raise InternalError(
                f"StepEdits.later_edits: {len(reply.later_edits)} parts, but no request of the step has more than "
                f"{programs} programs that the engine runs"
            )
        if not programs:
            return None, {}
        later = [Edits.from_proto(edits, len(self._rows), self._vocab_size) for edits in reply.later_edits]
        return later, {one.processor: one.display_name or one.processor for one in reply.applied}

    def _check(self, logits: Any) -> None:
        if self._applied:
            raise InvalidArgument("this step was applied already; begin the next one with Session.step")
        rows, width = tensors.check_matrix(logits)
        datatype = tensors.datatype_of(logits.dtype)
        expected = self._transfer.datatype
        if rows != len(self._rows) or width != self._vocab_size or datatype != expected:
            raise InvalidLogits(
                f"logits are {datatype}[{rows}, {width}]; this step needs "
                f"{expected}[{len(self._rows)}, {self._vocab_size}]"
            )
        self._transfer.check(logits)

    def _check_edited(self, edited: common_pb2.Tensor, rows: int) -> None:
        datatype = self._transfer.datatype
        if edited.datatype != datatype or list(edited.shape) != [rows, self._vocab_size]:
            raise InvalidLogits(
                f"the server returned {edited.datatype}{list(edited.shape)} instead of {datatype}"
                f"[{rows}, {self._vocab_size}]"
            )

    def _result(self, reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited) -> StepResult:
        failures, skipped = split_failures(reply.failures) if reply.failures else ({}, {})
        by_slot = {handle.slot: handle for handle in self._handles} if failures or skipped else {}
        if unknown := [slot for slot in (*failures, *skipped) if slot not in by_slot]:
            raise InternalError(f"the server reported failures of slots {unknown}, which are not in the step")
        lost = self._requests.lost
        return StepResult(
            {by_slot[slot]: lost.get(by_slot[slot], error) for slot, error in failures.items()},
            {by_slot[slot]: lost.get(by_slot[slot], error) for slot, error in skipped.items()},
            rows_applied(reply.applied),
            tuple(unpack_int32(reply.all_denied_rows).tolist()) if reply.all_denied_rows else (),
            ProcessorOutput.all_from_proto(reply.outputs) if reply.outputs else (),
        )


@dataclass
class _Answer:
    """A StepEdits message, parsed and checked.

    Attributes:
        columns: edits of the rows with processors that do not read logits, as `Edits.to_columns`. They were checked.
        checked: the same, or None: `edits` makes them of the columns.
        compiled: the same for the compiled core, or None. If it is set, nothing is to be done but to apply them.
        later_edits: those after the first program of each chain, after the second one, ...; None if the engine runs no
            program in this step.
        names: display name of each applied processor, by key, if the engine runs a program.
        logits_rows: the rows of logits that the server needs, ascending.
        out_of_sync: requests with a history at the server that differs from the client's.
        result: result of the rows with processors that do not read logits.
    """

    columns: tuple[bytes, ...]
    checked: Edits | None
    compiled: core.ReadEdits | None
    later_edits: list[Edits] | None
    names: dict[str, str]
    logits_rows: list[int]
    out_of_sync: list[Handle]
    result: StepResult

    @property
    def edits(self) -> Edits:
        """The edits as arrays, which an engine that applies them at once does not need."""
        if self.checked is None:
            self.checked = Edits.from_checked_columns(self.columns)
        return self.checked


def _combine(first: StepResult, second: StepResult) -> StepResult:
    """Merge the result of the rows that no processor read with that of the rows that were read."""
    applied = dict(first.rows_applied)
    for processor, rows in second.rows_applied.items():
        applied[processor] = applied.get(processor, 0) + rows
    return StepResult(
        first.failures | second.failures,
        first.skipped | second.skipped,
        applied,
        tuple(sorted(first.all_denied_rows + second.all_denied_rows)),
        first.outputs + second.outputs,
    )
