"""Steps that are recorded. They become events on the writer's thread."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from logitport.core.edits import EditKind
from logitport_proto import common_pb2
from logitport_proto.recording_pb2 import RecordedEvent, StepsDropped
from logitport_recording.writing.top_logits import take

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from logitport.core.edits import Edits
    from logitport.core.row_events import RequestEvent
    from logitport_proto.recording_pb2 import RecordedProcessor, RequestBegan
    from logitport_recording.record_options import RecordOptions
    from logitport_recording.writing.top_logits import Taken

# Of one step: more would take the engine's time.
_MAX_SAMPLED_ROWS = 16
EVENT_BYTES = 400  # of objects around the bytes


@dataclass
class RequestRecording:
    """The state of a request of the session.

    Attributes:
        key: its number; None if it is not recorded.
        greedy: whether the engine samples its largest logit.
        steps: number of its steps.
        known: whether the file, or the queue, has its history before the next step.
        lost: whether the writer's thread has failed to record a step since. Its history must be sent again.
        incomplete: whether the writer's thread waits for this history.
    """

    key: int | None
    greedy: bool
    steps: int = 0
    known: bool = False
    lost: bool = False
    incomplete: bool = False


@dataclass
class StepPart:
    """A recorded request in a step.

    Attributes:
        tracked: the request.
        key: its number.
        began: its event before this step, and what describes its processors, on the writer's thread; None if it is
            known.
        index, base_length, new_token_ids, draft_token_ids, draft_parents: as in `RequestStepped`.
        rows: row of the session's step, and draft offset.
        error: why the request failed; "" if it did not.
        events: what its processors have reported.
    """

    tracked: RequestRecording
    key: int
    began: tuple[RequestBegan, Callable[[], Iterable[RecordedProcessor]]] | None
    index: int
    base_length: int
    new_token_ids: bytes
    draft_token_ids: bytes
    draft_parents: bytes
    rows: list[tuple[int, int]]
    error: str = ""
    events: Sequence[RequestEvent] = ()


class RecordingStep:
    """A step of the session, before and after its reply.

    Args:
        parts: its requests that are recorded, one or more.
        options: the number of logits to sample.
        greedy: whether the engine samples the largest logit of each row.

    Attributes:
        size_bytes: memory that it holds.
    """

    def __init__(self, parts: list[StepPart], options: RecordOptions, *, greedy: bool) -> None:
        self.parts = parts
        self._options = options
        self._greedy = greedy
        self._edits: Edits | None = None
        self._reads: Collection[int] = ()
        self._sampled: list[int] = []
        self._before: Taken | None = None
        self._after: Taken | None = None
        self.size_bytes = EVENT_BYTES * len(parts) + sum(
            len(part.new_token_ids)
            + len(part.draft_token_ids)
            + len(part.draft_parents)
            + (0 if part.began is None else part.began[0].ByteSize())
            for part in parts
        )

    def sample(self, logits: Any) -> None:
        """Take the logits before the chains. Does nothing if they are not the step's."""
        every = self._options.sample_every
        due = [part for part in self.parts if every and part.index % every == 0]
        self._sampled = sorted(row for part in due for row, _ in part.rows)[:_MAX_SAMPLED_ROWS]
        if len(getattr(logits, "shape", ())) != 2 or len(logits) <= max(self._sampled, default=-1):
            self._sampled = []
        self._before = take(logits, self._sampled, self._options.top_k) if self._sampled else None

    def finish(
        self,
        edits: Edits,
        reads: Collection[int],
        errors: Mapping[int, str],
        events: Mapping[int, Sequence[RequestEvent]],
        logits: Any | None,
    ) -> None:
        """Take the reply, and the logits after the chains; the arguments are as in `Recorder.finish`, with keys."""
        self._edits, self._reads = edits, reads
        for part in self.parts:
            part.error = errors.get(part.key, "")
            part.events = events.get(part.key, ())
            self.size_bytes += sum(EVENT_BYTES + len(one.event.values) for one in part.events)
        if self._before is not None and logits is not None:
            self._after = take(logits, self._sampled, self._options.top_k, self._before)
            self.size_bytes += self._before.size_bytes + self._after.size_bytes
        self.size_bytes += edits.ids.nbytes + edits.values.nbytes

    def events(self) -> Iterator[RecordedEvent]:
        """Yield the events of its requests. Called on the writer's thread."""
        parts = [part for part in self.parts if part.began is not None or not part.tracked.incomplete]
        if len(parts) < len(self.parts):
            yield RecordedEvent(steps_dropped=StepsDropped(steps=len(self.parts) - len(parts)))
        unfinished = self._edits is None
        edits = {} if self._edits is None else _by_row(self._edits)
        tops: dict[int, tuple[Any, Any]] = {}
        if self._before is not None and self._after is not None:
            tops = dict(zip(self._sampled, zip(self._before.tops(), self._after.tops(), strict=True), strict=True))
        for part in parts:
            if part.began is not None:
                part.tracked.incomplete = False
                began, processors = part.began
                began.processors.extend(processors())
                yield RecordedEvent(request_began=began)
            event = RecordedEvent()
            step = event.request_stepped  # not copied into the event, which would take as long as all else
            step.key, step.index, step.base_length = part.key, part.index, part.base_length
            step.new_token_ids, step.draft_token_ids = part.new_token_ids, part.draft_token_ids
            step.draft_parents = part.draft_parents
            step.greedy, step.unfinished, step.error = self._greedy, unfinished, part.error
            for one in part.events:
                one._replace(slot=0).write_to(step.events.add())
            for row, offset in part.rows:
                before, after = tops.get(row, (None, None))
                recorded = step.rows.add(draft_offset=offset, edits=edits.get(row), before=before, after=after)
                if row in self._reads:
                    recorded.ClearField("edits")
                elif not unfinished:
                    recorded.edits.SetInParent()  # also if there are none
            yield event

    def lose(self) -> None:
        """Leave out later steps of its requests until their whole histories come again. For the writer's thread."""
        for part in self.parts:
            part.tracked.lost = part.tracked.incomplete = True


def _by_row(edits: Edits) -> dict[int, common_pb2.Edits]:
    """Return the edits of each row, as edits of row 0. The edits of a row are adjacent."""
    found, end, ends = {}, 0, edits.offsets.tolist()
    columns = edits.to_columns()
    for row, group in groupby(edits.rows.tolist()):
        begin, end = end, end + len(list(group))
        first, of_row = ends[begin], slice(4 * ends[begin], 4 * ends[end])
        kinds = columns.kinds[begin:end]
        found[row] = common_pb2.Edits(
            rows=bytes(4 * (end - begin)),
            kinds=kinds,
            offsets=struct.pack(f"<{end - begin + 1}i", *(one - first for one in ends[begin : end + 1])),
            ids=columns.ids[of_row],
            values=columns.values[of_row] if EditKind.BIAS in kinds else b"",
        )
    return found
