"""A step under way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from logitport.calls import rows_applied, split_failures, unpack_int32
from logitport.core import tensors
from logitport.core.edits import Edits
from logitport.errors import (
    InternalError,
    InvalidArgument,
    InvalidLogits,
    LogitportError,
    RequestsFailed,
    ServerUnavailable,
    StateLost,
)
from logitport.ops import apply_edits
from logitport.session.frames import Handle, step_frame
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.session.channel import FrameChannel
    from logitport.session.logits_buffer import LogitsTransfer, Placement
    from logitport.session.requests import SessionRequests


@dataclass(frozen=True)
class StepResult:
    """What came of a step.

    Attributes:
        failures: the error of each request that failed; the engine ends them. Their rows are unspecified.
        skipped: the error of each request that asked to be skipped; their rows are as they were.
        rows_applied: number of rows by processor: a built-in's name, or the `ProcessorRef.display_name` of a shipped
            one (its class and the beginning of its digest).
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
        channel: FrameChannel,
        requests: SessionRequests,
        transfer: LogitsTransfer,
        handles: Sequence[Handle],
        drafts: Mapping[Handle, Sequence[int]],
        rows: Sequence[tuple[Handle, int]],
        vocab_size: int,
    ) -> None:
        self._channel = channel
        self._connection = channel.connections
        self._requests = requests
        self._transfer = transfer
        self._vocab_size = vocab_size
        self._handles = handles
        self._drafts = drafts
        self._rows = rows
        self._answer: _Answer | None = None
        self._error: Exception | None = None
        self._applied = False
        self._superseded = False

    def apply(self, logits: Any, *, check: bool = True) -> StepResult:
        """Finish the step: collect the edits, and process `logits` in place.

        Args:
            logits: float[rows, vocab_size] of the session's dtype, a torch tensor on any device or a numpy array.
                Rows whose processors read logits travel, unless they lie in `Session.logits_buffer`; the others do not.
            check: raise if a request failed; with False, look at `failures` of the result.

        Raises:
            RequestsFailed: requests with on_error="abort" failed; the others were processed.
            InvalidLogits: wrong shape or dtype, or a buffer that is not good any more, see `Session.logits_buffer`; the
                logits are untouched, and `apply` may be called again.
            InvalidArgument: the step was applied already, or another one was begun.
        """
        self._check(logits)
        answer, placed = self._requests.with_reconnect(lambda: self._hand_over(logits))
        self._applied = True
        result = answer.result
        try:
            apply_edits(answer.edits, logits)  # while the server works on the rows that it was handed
        finally:
            if placed is not None:
                result = _combine(result, self._take_back(logits, answer.wanted, placed))
        return _checked(result) if check else result

    def edits(self, *, check: bool = True) -> Edits:
        """Wait for the edits and return them without applying any, for an engine that broadcasts them to its ranks.

        What came of the step beside them is in `result`.

        Args:
            check: raise if a request failed; with False, look at `failures` of `result`.

        Raises:
            RequestsFailed: as `apply`.
            InvalidArgument: there are rows whose processors read logits: finish the step with `apply`.
        """
        answer = self._requests.with_reconnect(self._settled)
        if answer.wanted:
            raise InvalidArgument(
                f"processors read the logits of rows {answer.wanted}, and edits are not all that is wanted there: "
                "finish the step with apply(logits)"
            )
        if check:
            _checked(answer.result)
        return answer.edits

    @property
    def result(self) -> StepResult | None:
        """What came of the rows that no processor reads; None before the server has answered."""
        return None if self._answer is None else self._answer.result

    def take_reply(self, reply: processing_pb2.SessionResponse | Exception) -> None:
        """Take in the reply, as far as that needs no logits; what was raised instead is raised by `apply`."""
        if isinstance(reply, Exception):
            self._error = reply
        else:
            self._answer = self._read(reply.edits)

    def supersede(self) -> None:
        """Another step was begun; this one cannot be finished any more."""
        self._superseded = True

    def _settled(self) -> _Answer:
        """The answer, after every history that the server does not have, or has otherwise, has been sent again.

        Raises:
            ServerUnavailable: the connection broke; on a new one it may be called again.
        """
        if self._superseded:
            raise InvalidArgument("another step was begun; finish a step before the next one")
        if self._answer is None:
            self._channel.drain_reply()
        if isinstance(self._error, ServerUnavailable) or self._wants_logits_elsewhere():
            self._answer, self._error = self._ask_again(), None
        if self._error is not None:
            raise self._error
        assert self._answer is not None  # noqa: S101 - take_reply() leaves one of the two
        if out_of_sync := [handle for handle in self._answer.out_of_sync if not handle.removed]:
            self._answer = replace(self._ask_again(out_of_sync), out_of_sync=[])
        return self._answer

    def _wants_logits_elsewhere(self) -> bool:
        """Whether the server that asked for this step's logits is gone: the one that came since knows nothing of it."""
        wanted = self._answer is not None and self._answer.wanted
        return bool(wanted) and self._connection != self._channel.connections

    def _ask_again(self, out_of_sync: Sequence[Handle] = ()) -> _Answer:
        """The answer to this step from histories that hold its new ids already; these are sent before."""
        self._requests.resend(out_of_sync)
        nothing_new: dict[Handle, Sequence[int]] = dict.fromkeys(self._handles, ())
        frame = step_frame(nothing_new, self._drafts, self._rows, self._vocab_size)
        answer = self._read(self._channel.exchange(processing_pb2.SessionRequest(step=frame)).edits)
        self._connection = self._channel.connections
        return answer

    def _hand_over(self, logits: Any) -> tuple[_Answer, Placement | None]:
        """The answer, and where the wanted rows are that were sent; None if none are wanted. Raises as `_settled`."""
        answer = self._settled()
        return answer, self._send(logits, answer.wanted) if answer.wanted else None

    def _send(self, logits: Any, wanted: Sequence[int]) -> Placement:
        frame = processing_pb2.SessionRequest()
        placed = self._transfer.put(logits, wanted, frame.logits.logits)
        self._channel.send(frame)
        for row in wanted:
            self._rows[row][0].processed = True
        return placed

    def _take_back(self, logits: Any, wanted: Sequence[int], placed: Placement) -> StepResult:
        """The wanted rows, processed. If the connection breaks here, nobody knows how far that came."""
        try:
            try:
                edited = self._channel.receive().logits
            except InvalidLogits:
                if self._transfer.refuse(placed):
                    return self._take_back(logits, wanted, self._send(logits, wanted))
                raise
            if placed.buffer is None:
                self._check_edited(edited.logits, len(wanted))
        except ServerUnavailable as error:
            lost = StateLost(f"the connection broke while logits of this request were being processed: {error}")
            return StepResult(dict.fromkeys((self._rows[row][0] for row in wanted), lost), {}, {}, ())
        self._transfer.fetch(logits, wanted, placed, edited.logits)
        return self._result(edited)

    def _read(self, reply: processing_pb2.StepEdits) -> _Answer:
        """Parse and check everything that the engine's next moments depend on."""
        out_of_sync = {
            failure.slot for failure in reply.failures if failure.error.code == common_pb2.ERROR_CODE_NEED_SYNC
        }
        wanted = unpack_int32(reply.logits_rows).tolist()
        if wanted and not (wanted[0] >= 0 and wanted[-1] < len(self._rows) and wanted == sorted(set(wanted))):
            raise InternalError(
                f"StepEdits.logits_rows: {wanted} are no rows of a step of {len(self._rows)}, ascending"
            )
        return _Answer(
            edits=Edits.from_proto(reply.edits, len(self._rows), self._vocab_size),
            wanted=wanted,
            out_of_sync=[handle for handle in self._handles if handle.slot in out_of_sync] if out_of_sync else [],
            result=self._result(reply),
        )

    def _check(self, logits: Any) -> None:
        if self._applied:
            raise InvalidArgument("this step was applied already; begin the next one with Session.step")
        rows, width = tensors.check_matrix(logits)
        datatype = tensors.datatype_of(logits.dtype)
        wanted = self._transfer.datatype
        if rows != len(self._rows) or width != self._vocab_size or datatype != wanted:
            raise InvalidLogits(
                f"logits are {datatype}[{rows}, {width}]; this step wants "
                f"{wanted}[{len(self._rows)}, {self._vocab_size}]"
            )
        self._transfer.check(logits)

    def _check_edited(self, edited: common_pb2.Tensor, rows: int) -> None:
        datatype = self._transfer.datatype
        if edited.datatype != datatype or list(edited.shape) != [rows, self._vocab_size]:
            raise InvalidLogits(
                f"the server returned {edited.datatype}{list(edited.shape)} for {datatype}[{rows}, {self._vocab_size}]"
            )

    def _result(self, reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited) -> StepResult:
        failures, skipped = split_failures(reply.failures) if reply.failures else ({}, {})
        by_slot = {handle.slot: handle for handle in self._handles} if failures or skipped else {}
        if strangers := [slot for slot in (*failures, *skipped) if slot not in by_slot]:
            raise InternalError(f"the server told of failures in slots {strangers}, which take no part in the step")
        lost = self._requests.lost
        return StepResult(
            {by_slot[slot]: lost.get(by_slot[slot], error) for slot, error in failures.items()},
            {by_slot[slot]: lost.get(by_slot[slot], error) for slot, error in skipped.items()},
            rows_applied(reply.applied),
            tuple(unpack_int32(reply.all_denied_rows).tolist()),
        )


@dataclass(frozen=True)
class _Answer:
    """A StepEdits, read and checked."""

    edits: Edits
    wanted: list[int]
    out_of_sync: list[Handle]
    result: StepResult


def _checked(result: StepResult) -> StepResult:
    if result.failures:
        raise RequestsFailed(result.failures, result)
    return result


def _combine(first: StepResult, second: StepResult) -> StepResult:
    """What came of the rows that no processor read, and of those that were read."""
    applied = dict(first.rows_applied)
    for processor, rows in second.rows_applied.items():
        applied[processor] = applied.get(processor, 0) + rows
    return StepResult(
        first.failures | second.failures,
        first.skipped | second.skipped,
        applied,
        tuple(sorted(first.all_denied_rows + second.all_denied_rows)),
    )
