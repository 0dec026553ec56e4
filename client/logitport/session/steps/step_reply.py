"""The results of a session's steps, read from replies with the compiled core or from their messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Union

from logitport.core.compiled import core
from logitport.core.edits import Edits
from logitport.core.row_events import RequestEvent, RowEvent
from logitport.errors import LogitportError
from logitport.ops import current
from logitport.session.requests.request_table import late_error
from logitport.shipping.calls import rows_applied, split_failures, unpack_int32
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from logitport.session.handle import Handle
    from logitport.session.requests.request_table import RequestTable
    from logitport.session.steps.step_content import StepContent

_FIELDS = ("failures", "skipped", "rows_applied", "all_denied_rows")


@dataclass(frozen=True)
class StepResult:
    """Result of a step.

    Attributes:
        failures: the error of each request that failed; the engine must end these. Their rows are unspecified.
        skipped: the error of each failed request with on_error="skip"; their rows are unchanged.
        rows_applied: number of rows by processor: a built-in's name, or the `ProcessorRef.display_name` of a shipped
            one (its class and the beginning of its digest).
        all_denied_rows: rows where edits left no id allowed.
    """

    failures: dict[Handle, LogitportError]
    skipped: dict[Handle, LogitportError]
    rows_applied: dict[str, int]
    all_denied_rows: tuple[int, ...]

    @classmethod
    def of_core(cls, reply: core.StepReply) -> StepResult:
        """Return the result of a step without failures. Its fields are made when one of them is read."""
        result = cls.__new__(cls)
        result.__dict__["_reply"] = reply
        return result

    @property
    def is_plain(self) -> bool:
        """Whether no request failed, and each row has an id that is allowed. Makes no field."""
        reply: core.StepReply | None = self.__dict__.get("_reply")
        if reply is not None:
            return not reply.all_denied_rows
        return not (self.failures or self.skipped or self.all_denied_rows)

    if not TYPE_CHECKING:  # a type checker must not accept any name

        def __getattr__(self, name: str) -> Any:
            # Only for attributes that are not set: the fields of `of_core`, before they are made.
            values = self.__dict__
            reply = values.get("_reply")
            if name not in _FIELDS or (reply is None and name not in values):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if reply is not None:
                values.update(zip(_FIELDS, ({}, {}, reply.rows_applied, reply.all_denied_rows), strict=True))
                values.pop("_reply", None)  # may be large; another thread may have made the fields, too
            return values[name]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FIELDS}

    def combined(self, other: StepResult) -> StepResult:
        """Return the result of the rows of both, which are different ones."""
        applied = dict(self.rows_applied)
        for processor, rows in other.rows_applied.items():
            applied[processor] = applied.get(processor, 0) + rows
        return StepResult(
            self.failures | other.failures,
            self.skipped | other.skipped,
            applied,
            tuple(sorted(self.all_denied_rows + other.all_denied_rows)),
        )


class CompiledReply:
    """A reply to a step with edits and counts only, as the compiled core has read and checked it.

    Nothing is to be done but to apply its edits. The other attributes are those of `CheckedReply`.

    Attributes:
        compiled: the core's reply.
    """

    __slots__ = ("_edits", "_result", "compiled")

    later_edits: ClassVar[list[Edits] | None] = None
    names: ClassVar[Mapping[str, str]] = MappingProxyType({})
    logits_rows: ClassVar[Sequence[int]] = ()
    out_of_sync: ClassVar[Sequence[Handle]] = ()

    def __init__(self, compiled: core.StepReply) -> None:
        self.compiled = compiled
        self._edits: Edits | None = None
        self._result: StepResult | None = None

    @property
    def events(self) -> Sequence[RequestEvent]:
        """As in `CheckedReply`."""
        return [RequestEvent(*event[:3], RowEvent(*event[3:])) for event in self.compiled.events or ()]

    @property
    def result(self) -> StepResult:
        """The result, whose fields are made when they are read."""
        if self._result is None:
            self._result = StepResult.of_core(self.compiled)
        return self._result

    @property
    def edits(self) -> Edits:
        """The edits as arrays, which an engine that applies them at once does not need."""
        if self._edits is None:
            self._edits = Edits.from_checked_columns(self.compiled.columns)
        return self._edits


@dataclass(slots=True)
class CheckedReply:
    """A reply to a step, parsed and checked.

    Attributes:
        result: result of the rows with processors that do not read logits.
        edits: edits of these rows.
        later_edits: those after the first program of each chain, after the second one, ...; None if the engine runs no
            program in this step.
        names: display name of each applied processor, by key, if the engine runs a program.
        logits_rows: the rows of logits that the server needs, ascending.
        out_of_sync: requests with a history at the server that differs from the client's.
        events: the events of the rows with processors that do not read logits.
    """

    compiled: ClassVar[core.StepReply | None] = None

    result: StepResult
    edits: Edits
    later_edits: list[Edits] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    logits_rows: Sequence[int] = ()
    out_of_sync: Sequence[Handle] = ()
    events: Sequence[RequestEvent] = ()


Answer = Union[CompiledReply, CheckedReply]


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

    def read(self, content: StepContent, reply: core.StepReply | processing_pb2.StepEdits) -> Answer:
        """Read a reply. Raises LogitportError, InvalidArgument if it is wrong."""
        if isinstance(reply, processing_pb2.StepEdits):
            return self.read_message(content, reply)
        return CompiledReply(reply)

    def read_message(self, content: StepContent, reply: processing_pb2.StepEdits) -> CheckedReply:
        """Read a reply that the core has not read. Raises as `read`."""
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
        answer = CheckedReply(
            self.result(reply, content.handles),
            Edits.from_proto(reply.edits, num_rows, self._vocab_size),
            logits_rows=logits_rows,
            out_of_sync=[handle for handle in content.handles if handle.slot in out_of_sync] if out_of_sync else (),
            events=read_events(reply.events) if reply.events else (),
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


def read_events(events: Iterable[common_pb2.Event]) -> list[RequestEvent]:
    """Read the events of a reply."""
    return [
        RequestEvent(
            one.slot, one.processor, one.position, RowEvent(one.name, one.values, one.left_out), one.draft_offset
        )
        for one in events
    ]


def _programs_of(content: StepContent) -> int:
    """Return the largest number of programs that the engine runs for a request of the step."""
    return max((len(handle.programs) for handle in content.handles), default=0)
