"""The requests of a session that the compiled core runs: those whose chains hold only compiled states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from logitport.compiled import core
from logitport.core.edits import Edits
from logitport_server.session.outcome import AppliedRows
from logitport_server.session.step_time import Spending
from logitport_server.turns import Released

if TYPE_CHECKING:
    from logitport_core._core import State
    from logitport_proto import processing_pb2
    from logitport_server.config import ServerConfig
    from logitport_server.session.active_request import ActiveRequest

    # rows, kinds, offsets, ids and values of the edits; the rows with no id left; number, rows and seconds of each
    # processor.
    _Result: TypeAlias = tuple[tuple[bytes, bytes, bytes, bytes, bytes], bytes, list[tuple[int, int, float]]]

# Slots of 4 bytes each. A shorter call does not pay for handing the turn over.
_LONG_STEP_BYTES = 4 * 64
_INT64_MAX = (1 << 63) - 1
# Rows times processors of one call, which cannot pause for other principals. Python computes larger steps, in slices:
# in the core, many sessions with such steps at once took 4 GB for their replies.
_MAX_WORK = 16_384


class CompiledPart(NamedTuple):
    """What the core has computed of a step with other requests.

    Attributes:
        edits: the edits of its rows.
        denied_rows: the rows in which no id is left allowed, ascending.
        applied: the rows by processor.
        seconds: the time by display name of the processor.
    """

    edits: Edits
    denied_rows: list[int]
    applied: list[AppliedRows]
    seconds: list[tuple[str, float]]


class CompiledBatch:
    """Runs the steps of compiled requests, in one call of the core without the interpreter's lock.

    The core refuses a step that is unusual, and then has changed nothing. Python computes it with the same histories
    and states, and makes the errors. So Python can also take over any step, for example one that is traced.

    Args:
        vocab_size: width of the logits.
        max_draft_tokens: of a request in a step.
        limits: the server's options.
    """

    def __init__(self, vocab_size: int, max_draft_tokens: int, limits: ServerConfig) -> None:
        tokens, size = limits.max_tokens_per_request, limits.max_step_bytes
        work = min(limits.max_step_work, _MAX_WORK)
        self._core = core.Batch(
            vocab_size, max_draft_tokens, *(min(limit, _INT64_MAX) for limit in (tokens, work, size))
        )
        # Key and display name of each processor, by its number in the core.
        self._processors: list[tuple[str, str]] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._requests: set[int] = set()
        self._suspended: dict[int, ActiveRequest] = {}

    def add(self, request: ActiveRequest) -> None:
        """Add a request if its chain is compiled. It takes the place of an earlier one of its slot."""
        self.remove(request.slot)
        states = compiled_states(request)
        if states is None:
            return
        chain = [
            (state, self._number(entry.dialect.key, entry.dialect.name))
            for state, entry in zip(states, request.chain, strict=True)
        ]
        self._core.put(request.slot, request.generation, request.history, chain)
        self._requests.add(request.slot)
        request.is_compiled = True

    def remove(self, slot: int) -> None:
        """Remove the request of a slot, if there is one."""
        self._suspended.pop(slot, None)
        if slot in self._requests:
            self._requests.remove(slot)
            self._core.remove(slot)

    def suspend(self, request: ActiveRequest) -> None:
        """Leave a request that has failed to Python, until `resume` finds it sound."""
        if request.is_compiled:
            self.remove(request.slot)
            request.is_compiled = False
            self._suspended[request.slot] = request

    def resume(self) -> bool:
        """Add the suspended requests that have no failure any more. Returns whether there was one."""
        sound = [request for request in self._suspended.values() if request.is_sound]
        for request in sound:
            self.add(request)
        return bool(sound)

    def step(self, frame: processing_pb2.Step, reply: processing_pb2.StepEdits) -> Spending | None:
        """Compute a step, and fill in its reply. Returns what it has spent its time on; None if it is refused."""
        if not self._requests:
            return None
        result = self._call(frame)
        if result is None:
            return None
        columns, denied_rows, applied = result
        edits = reply.edits
        edits.rows, edits.kinds, edits.offsets, edits.ids, edits.values = columns
        if denied_rows:
            reply.all_denied_rows = denied_rows
        spending = Spending()
        for number, rows, seconds in applied:
            key, name = self._processors[number]
            reply.applied.add(processor=key, rows=rows, display_name=name if name != key else "")
            spending.add(name, seconds)
        return spending

    def step_partly(self, frame: processing_pb2.Step) -> CompiledPart | None:
        """Compute the part of a step that belongs to compiled requests; None if it is refused."""
        result = self._call(frame, partly=True)
        if result is None:
            return None
        columns, denied_rows, applied = result
        rows, kinds, offsets, ids, values = columns
        return CompiledPart(
            Edits(
                rows=np.frombuffer(rows, "<i4"),
                kinds=np.frombuffer(kinds, np.uint8),
                offsets=np.frombuffer(offsets, "<i4"),
                ids=np.frombuffer(ids, "<i4"),
                values=np.frombuffer(values, "<f4"),
            ),
            np.frombuffer(denied_rows, "<i4").tolist(),
            [AppliedRows(*self._processors[number], rows) for number, rows, _ in applied],
            [(self._processors[number][1], seconds) for number, _, seconds in applied],
        )

    def _call(self, frame: processing_pb2.Step, *, partly: bool = False) -> _Result | None:
        slots = frame.slots
        arguments = (
            slots,
            frame.generations,
            frame.base_lengths,
            frame.history_crcs,
            frame.new_token_counts,
            frame.new_token_ids,
            frame.row_requests,
            frame.row_draft_offsets,
            frame.draft_counts,
            frame.draft_token_ids,
            partly,
        )
        if len(slots) < _LONG_STEP_BYTES:
            return self._core.step(*arguments)
        with Released():
            return self._core.step(*arguments)

    def _number(self, key: str, name: str) -> int:
        number = self._numbers.setdefault((key, name), len(self._processors))
        if number == len(self._processors):
            self._processors.append((key, name))
        return number


def compiled_states(request: ActiveRequest) -> list[State] | None:
    """The states of a request's chain; None if one of them, or the history, is not compiled."""
    if not isinstance(request.history, core.History):
        return None
    states = [entry.dialect.compiled_state(entry.state) for entry in request.chain]
    return None if None in states else [state for state in states if state is not None]
