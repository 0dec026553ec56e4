"""The requests of a session that the compiled core runs: those whose chains hold only compiled states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from logitport.core.compiled import core
from logitport.core.edits import EditColumns, Edits
from logitport.core.row_events import RequestEvent, RowEvent
from logitport_session.telemetry.time_buckets import PROCESSOR_BOUNDS, STEP_BOUNDS

if TYPE_CHECKING:
    from logitport_core._core import State
    from logitport_session.requests.active_request import ActiveRequest
    from logitport_session.resources.session_limits import SessionLimits

    # Key, display name, rows and seconds of each processor that was applied.
    Applied: TypeAlias = list[tuple[str, str, int, float]]
    from collections.abc import Mapping, Sequence

# The core's names of the transports, for its counts; empty without the core. An embedded session's are not read.
TRANSPORTS = (
    {}
    if core is None
    else {"grpc": core.Transport.GRPC, "local": core.Transport.LOCAL, "embedded": core.Transport.LOCAL}
)
_INT64_MAX = (1 << 63) - 1
# Rows times processors of one call. Python computes larger steps: in the core, many sessions with such steps at once
# took 4 GB for their replies.
_MAX_WORK = 16_384
# How long the core serves a socket before Python looks whether something has changed, such as whether the session
# should move.
_SERVE_SECONDS = 0.1


class Served(NamedTuple):
    """Result of serving the frames of a socket in the core.

    Attributes:
        goes_on: whether it can serve the socket again, with `received`.
        received: what was received and not answered.
        last_seq: number of the last frame that was answered.
        last_reply: the reply to it; b"" if no frame was answered.
        error_number: of the system call that failed to send a reply; 0 if none has failed.
    """

    goes_on: bool
    received: bytes
    last_seq: int
    last_reply: bytes
    error_number: int


class CompiledPart(NamedTuple):
    """Result of the core for its part of a step.

    Attributes:
        columns: the edits of its rows.
        denied_rows: the rows with no id left allowed, ascending.
        applied: key, display name, rows and seconds of each processor.
        events: the events, with the row of each.
    """

    columns: EditColumns
    denied_rows: list[int]
    applied: Applied
    events: Sequence[tuple[int, RequestEvent]]

    def columns_with(self, others: Edits) -> EditColumns:
        """Return the edits of its rows and of other rows. Copies no column if the others have no edits."""
        if not len(others):
            return self.columns
        return others.joined(Edits.from_checked_columns(self.columns)).to_columns()


class CompiledBatch:
    """Runs the steps of compiled requests, in one call of the core without the interpreter's lock.

    The core refuses a step that is unusual, and then has changed nothing. Python computes it with the same histories
    and states, and makes the errors. So Python can also take over any step, for example one that is traced.

    Attributes:
        slots: the slots of the requests in it.
        suspended: by slot, the failed requests that are left to Python.
    """

    def __init__(self, vocab_size: int, max_draft_tokens: int, limits: SessionLimits) -> None:
        tokens, size = limits.max_tokens_per_request, limits.max_step_bytes
        work = min(limits.max_step_work, _MAX_WORK)
        tokens, work, size = (min(limit, _INT64_MAX) for limit in (tokens, work, size))
        self.core = core.Batch(vocab_size, max_draft_tokens, tokens, work, size, STEP_BOUNDS, PROCESSOR_BOUNDS)
        self._counted_steps = 0
        self.slots: set[int] = set()
        self.suspended: dict[int, ActiveRequest] = {}

    def add(self, request: ActiveRequest) -> None:
        """Add a request if its chain is compiled. It replaces an earlier one of its slot."""
        self.remove(request.slot)
        states = compiled_states(request)
        if states is None:
            return
        chain = [
            (state, entry.dialect.key, entry.dialect.name) for state, entry in zip(states, request.chain, strict=True)
        ]
        self.core.put(request.slot, request.generation, request.history, chain)
        self.slots.add(request.slot)
        request.is_compiled = True

    def remove(self, slot: int) -> None:
        """Remove the request of a slot, if there is one."""
        self.suspended.pop(slot, None)
        if slot in self.slots:
            self.slots.remove(slot)
            self.core.remove(slot)

    def suspend(self, request: ActiveRequest) -> None:
        """Leave a request that has failed to Python, until `resume` finds it sound."""
        if request.is_compiled:
            self.remove(request.slot)
            request.is_compiled = False
            self.suspended[request.slot] = request

    def resume(self) -> bool:
        """Add the suspended requests that have no failure any more. Returns whether there was one."""
        sound = [request for request in self.suspended.values() if request.is_sound]
        for request in sound:
            self.add(request)
        return bool(sound)

    def serve(
        self,
        descriptor: int,
        received: bytes,
        max_bytes: int,
        last_seq: int,
        transport: str,
        *,
        should_move: bool,
        max_steps: int,
    ) -> Served:
        """Answer the frames of a socket while they are steps of compiled requests, for a tenth of a second.

        Returns after a reply of over 1 MiB, too: the core then frees its copy, however long the next frame takes.

        At most `max_steps` are answered. `received` holds bytes that were read earlier and not processed.
        """
        terms = should_move, TRANSPORTS[transport], _SERVE_SECONDS, max_steps
        return Served(*self.core.serve(descriptor, received, max_bytes, last_seq, *terms))

    @property
    def activity(self) -> tuple[int, float]:
        """The number of steps that the core has answered, and when the last one ended, in monotonic seconds."""
        return self.core.activity()

    def take_counts(self) -> CompiledCounts | None:
        """Return the counts of these steps since the last call, or None. On any thread."""
        steps, _ = self.core.activity()
        if steps == self._counted_steps:
            return None
        self._counted_steps = steps
        by_transport, processors, events = self.core.take_counts()
        return CompiledCounts(
            {
                transport: StepCounts(TimeCounts(*counts[:2]), TimeCounts(*counts[2:4]), *counts[4:])
                for transport, counts in zip(("grpc", "local"), by_transport, strict=True)
            },
            [ProcessorCounts(name, rows, TimeCounts(buckets, seconds)) for name, rows, buckets, seconds in processors],
            events,
        )

    def step_partly(self, data: bytes) -> CompiledPart | None:
        """Compute the part of a step, from its serialized frame, that belongs to compiled requests.

        Returns None if it is refused; without an attempt if the core has just refused the whole step.
        """
        result = self.core.step_partly(data)
        if result is None:
            return None
        columns, denied_rows, applied, found = result
        events = [
            (row, RequestEvent(slot, key, position, RowEvent(name, values), draft_offset))
            for row, slot, key, position, name, values, draft_offset in found
        ]
        return CompiledPart(EditColumns(*columns), np.frombuffer(denied_rows, "<i4").tolist(), applied, events)


def compiled_states(request: ActiveRequest) -> list[State] | None:
    """The states of a request's chain; None if one of them, or the history, is not compiled."""
    # Code of a client could still change the state of its request.
    if not isinstance(request.history, core.History) or any(entry.dialect.shipped for entry in request.chain):
        return None
    states = [entry.dialect.compiled_state(entry.state) for entry in request.chain]
    return None if None in states else [state for state in states if state is not None]


class TimeCounts(NamedTuple):
    """A histogram of seconds.

    Attributes:
        buckets: the number of times up to each bound, but above the one before it; the last are above all bounds.
        seconds: their sum.
    """

    buckets: Sequence[int]
    seconds: float


class StepCounts(NamedTuple):
    """Steps of one transport.

    Attributes:
        computed: the times to compute them.
        queued: the times that they have waited.
        received_bytes, sent_bytes: of frames and replies that Python has not seen.
    """

    computed: TimeCounts
    queued: TimeCounts
    received_bytes: int
    sent_bytes: int


class ProcessorCounts(NamedTuple):
    """Display name of a processor, the rows that it was applied to, and its times by step."""

    name: str
    rows: int
    times: TimeCounts


class CompiledCounts(NamedTuple):
    """Steps by transport, processors, and events by name."""

    steps: Mapping[str, StepCounts]
    processors: Sequence[ProcessorCounts]
    events: Mapping[str, int]
