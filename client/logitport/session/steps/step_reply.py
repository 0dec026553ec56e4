"""Reads the replies to a session's steps, with the compiled core or from their messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport.core.compiled import core
from logitport.core.edits import NO_OFFSETS, Edits
from logitport.errors import LogitportError
from logitport.ops import current
from logitport.session.requests.request_table import late_error
from logitport.session.steps.step_result import StepResult
from logitport.shipping.calls import rows_applied, split_failures, unpack_int32
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.session.handle import Handle
    from logitport.session.requests.request_table import RequestTable
    from logitport.session.steps.step_content import StepContent


@dataclass(slots=True)
class CheckedReply:
    """A reply to a step, parsed and checked.

    Attributes:
        result: result of the rows with processors that do not read logits.
        checked: edits of these rows; None if they are in `compiled`: `edits` makes them.
        compiled: the reply as the compiled core has read it, or None. If it is set, nothing is to be done but to apply
            its edits.
        later_edits: those after the first program of each chain, after the second one, ...; None if the engine runs no
            program in this step.
        names: display name of each applied processor, by key, if the engine runs a program.
        logits_rows: the rows of logits that the server needs, ascending.
        out_of_sync: requests with a history at the server that differs from the client's.
    """

    result: StepResult
    checked: Edits | None = None
    compiled: core.StepReply | None = None
    later_edits: list[Edits] | None = None
    names: dict[str, str] = field(default_factory=dict)
    logits_rows: Sequence[int] = ()
    out_of_sync: Sequence[Handle] = ()

    @property
    def edits(self) -> Edits:
        """The edits as arrays, which an engine that applies them at once does not need."""
        if self.checked is None:
            assert self.compiled is not None  # noqa: S101 - one of the two is set
            self.checked = Edits.from_checked_columns(self.compiled.columns)
        return self.checked


class ReplyReader:
    """Reads replies, and checks every field that the client uses.

    Args:
        table: the requests of the session.
        vocab_size: width of the logits.
        datatype: of the logits: "FP32", "FP16" or "BF16".
    """

    def __init__(self, table: RequestTable, vocab_size: int, datatype: str) -> None:
        self._table = table
        self._vocab_size = vocab_size
        # None if the compiled core does not apply edits to logits in the memory of the CPU.
        self._compiled = core.ReplyReader(vocab_size, core.Datatype[datatype]) if current().uses_core else None

    def compiled(self, content: StepContent) -> core.ReplyReader | None:
        """Return the core's reader of replies with edits and counts only; None if the reply to this step is parsed."""
        return None if self._table.has_programs and _programs_of(content) else self._compiled

    def read(self, reply: processing_pb2.StepEdits, content: StepContent) -> CheckedReply:
        """Read a reply. Raises LogitportError, InvalidArgument if it is wrong."""
        num_rows = len(content.rows)
        logits_rows = unpack_int32(reply.logits_rows).tolist() if reply.logits_rows else []
        ascending = logits_rows == sorted(set(logits_rows))
        if logits_rows and not (ascending and logits_rows[0] >= 0 and logits_rows[-1] < num_rows):
            raise LogitportError(
                f"StepEdits.logits_rows: {logits_rows} are not ascending rows of a step of {num_rows} rows"
            )
        programs = _programs_of(content) if self._table.has_programs else 0
        if len(reply.later_edits) > programs:
            raise LogitportError(
                f"StepEdits.later_edits: {len(reply.later_edits)} parts, but no request of the step has more than "
                f"{programs} programs that the engine runs"
            )
        out_of_sync = {
            failure.slot for failure in reply.failures if failure.error.code == common_pb2.ERROR_CODE_NEED_SYNC
        }
        edits = reply.edits
        columns = edits.rows, edits.offsets or NO_OFFSETS, edits.ids, edits.values, edits.kinds
        answer = CheckedReply(
            self.result(reply, content.handles),
            checked=Edits.from_columns(columns, num_rows, self._vocab_size),
            logits_rows=logits_rows,
            out_of_sync=[handle for handle in content.handles if handle.slot in out_of_sync] if out_of_sync else (),
        )
        if programs:
            answer.later_edits = [Edits.from_proto(one, num_rows, self._vocab_size) for one in reply.later_edits]
            answer.names = {one.processor: one.display_name or one.processor for one in reply.applied}
        return answer

    def result(
        self, reply: processing_pb2.StepEdits | processing_pb2.StepLogitsEdited, handles: Sequence[Handle]
    ) -> StepResult:
        """Read the result of these requests. Raises LogitportError for a failure of another request."""
        failures, skipped = split_failures(reply.failures) if reply.failures else ({}, {})
        by_slot = {handle.slot: handle for handle in handles} if failures or skipped else {}
        if unknown := [slot for slot in (*failures, *skipped) if slot not in by_slot]:
            raise LogitportError(f"the server reported failures of slots {unknown}, which are not in the step")
        lost = self._table.lost
        for slot in [slot for slot in failures if self._table.is_restoring(by_slot[slot])]:
            del failures[slot]
            skipped[slot] = late_error(by_slot[slot])
        return StepResult(
            {by_slot[slot]: lost.get(by_slot[slot], error) for slot, error in failures.items()},
            {by_slot[slot]: lost.get(by_slot[slot], error) for slot, error in skipped.items()},
            rows_applied(reply.applied),
            tuple(unpack_int32(reply.all_denied_rows).tolist()) if reply.all_denied_rows else (),
        )


def _programs_of(content: StepContent) -> int:
    """Return the largest number of programs that the engine runs for a request of the step."""
    return max((len(handle.programs) for handle in content.handles), default=0)
