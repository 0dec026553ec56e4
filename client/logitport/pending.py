"""A step under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport import tensors
from logitport.calls import int32_column, rows_applied, split_failures
from logitport.edits import Edits
from logitport.errors import InvalidArgument, InvalidLogits, LogitportError, RequestsFailed
from logitport.frames import Handle, step_frame
from logitport.ops import apply_edits
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.session import Session


@dataclass(frozen=True)
class StepResult:
    """What came of a step.

    Attributes:
        failures: the error of each request that failed; the engine ends them. Their rows are unspecified.
        skipped: the error of each request that asked to be skipped; their rows are as they were.
        rows_applied: number of rows by processor (a built-in's name, or a digest).
        all_denied_rows: rows in which edits left no id allowed.
    """

    failures: dict[Handle, LogitportError]
    skipped: dict[Handle, LogitportError]
    rows_applied: dict[str, int]
    all_denied_rows: tuple[int, ...]


class PendingStep:
    """What `Session.step` returns: the server is at work, or has answered already."""

    def __init__(
        self,
        session: Session,
        handles: Sequence[Handle],
        drafts: Mapping[Handle, Sequence[int]],
        rows: Sequence[tuple[Handle, int]],
    ) -> None:
        self._session = session
        self._handles = handles
        self._drafts = drafts
        self._rows = rows
        self._reply: processing_pb2.StepEdits | None = None
        self._error: LogitportError | None = None
        self._applied = False

    def apply(self, logits: Any, *, check: bool = True) -> StepResult:
        """Finish the step: collect the edits, and process `logits` in place.

        Args:
            logits: float[rows, vocab_size] of the session's dtype, a torch tensor on any device or a numpy array.
                Rows whose processors read logits travel; the others do not.
            check: raise if a request failed; with False, look at `failures` of the result.

        Raises:
            RequestsFailed: requests with on_error="abort" failed; the others were processed.
            InvalidLogits: wrong shape or dtype; the logits are untouched, and `apply` may be called again.
            InvalidArgument: the step was applied already, or another one was begun.
        """
        self._check(logits)
        reply = self._answer()
        edits = Edits.from_proto(reply.edits, len(self._rows), self._session.vocab_size)
        self._applied = True
        wanted = int32_column(reply.logits_rows).tolist()
        if not wanted:
            apply_edits(edits, logits)
            return self._result(reply, None, check=check)
        staged = self._send_logits(logits, wanted)
        apply_edits(edits, logits)
        edited = self._session.receive().logits
        if staged is not None:
            tensors.put_rows(logits, wanted, staged)
        elif edited.HasField("logits"):
            tensors.write_rows(logits, wanted, edited.logits)
        return self._result(reply, edited, check=check)

    def edits(self) -> Edits:
        """Wait for the edits and return them without applying any, for an engine that broadcasts them to its ranks."""
        return Edits.from_proto(self._answer().edits, len(self._rows), self._session.vocab_size)

    def settle(self) -> None:
        """Take in the reply; what is wrong with it is told when it is asked for."""
        if self._reply is None and self._error is None:
            try:
                self._reply = self._session.receive().edits
            except LogitportError as error:
                self._error = error

    def _answer(self) -> processing_pb2.StepEdits:
        """The reply, after every history on which the two sides differ has been sent again."""
        self.settle()
        if self._error is not None:
            raise self._error
        assert self._reply is not None  # noqa: S101 - settle() leaves one of the two
        out_of_sync = {
            failure.slot for failure in self._reply.failures if failure.error.code == common_pb2.ERROR_CODE_NEED_SYNC
        }
        if out_of_sync:
            self._session.admit([handle for handle in self._handles if handle.slot in out_of_sync])
            nothing_new: dict[Handle, Sequence[int]] = dict.fromkeys(self._handles, ())
            frame = step_frame(nothing_new, self._drafts, self._rows, self._session.vocab_size)
            self._reply = self._session.exchange(processing_pb2.SessionRequest(step=frame)).edits
        return self._reply

    def _send_logits(self, logits: Any, wanted: Sequence[int]) -> Any:
        """Send the wanted rows: where they lie, or a copy in shared memory (which is returned), or inline."""
        session = self._session
        frame = processing_pb2.SessionRequest()
        message = frame.logits.logits
        staged = None
        if not session.buffer.locate(logits, message):
            rows = tensors.take_rows(logits, wanted)
            if session.shares_memory:
                staged, buffer = session.stage(rows)
                buffer.locate(staged, message)
            else:
                tensors.write(message, rows)
        session.send(frame)
        return staged

    def _check(self, logits: Any) -> None:
        if self._applied:
            raise InvalidArgument("this step was applied already; begin the next one with Session.step")
        rows, width = tensors.check_matrix(logits)
        datatype = tensors.datatype_of(logits.dtype)
        session = self._session
        if (rows, width, datatype) != (len(self._rows), session.vocab_size, session.datatype):
            raise InvalidLogits(
                f"logits are {datatype}[{rows}, {width}]; this step wants "
                f"{session.datatype}[{len(self._rows)}, {session.vocab_size}]"
            )

    def _result(
        self, reply: processing_pb2.StepEdits, edited: processing_pb2.StepLogitsEdited | None, *, check: bool
    ) -> StepResult:
        parts: list[processing_pb2.StepEdits | processing_pb2.StepLogitsEdited] = [reply]
        if edited is not None:
            parts.append(edited)
        failures: dict[int, LogitportError] = {}
        skipped: dict[int, LogitportError] = {}
        applied: dict[str, int] = {}
        denied: list[int] = []
        for part in parts:
            failed_here, skipped_here = split_failures(part.failures)
            failures |= failed_here
            skipped |= skipped_here
            for processor, rows in rows_applied(part.applied).items():
                applied[processor] = applied.get(processor, 0) + rows
            denied += int32_column(part.all_denied_rows).tolist()
        by_slot = {handle.slot: handle for handle in self._handles}
        result = StepResult(
            {by_slot[slot]: error for slot, error in failures.items()},
            {by_slot[slot]: error for slot, error in skipped.items()},
            applied,
            tuple(sorted(denied)),
        )
        if failures and check:
            raise RequestsFailed(result.failures, result)
        return result
