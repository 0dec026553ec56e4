"""Items of a recording's queue: steps and ends of requests. They become events on the writer's thread."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.edits import EditKind, Edits
from logitport.recording.top_logits import take
from logitport_proto.recording_pb2 import RecordedEvent, RequestEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from logitport.recording.options import RecordOptions
    from logitport.recording.top_logits import Taken
    from logitport_proto import common_pb2
    from logitport_proto.recording_pb2 import RecordedProcessor, RequestBegan, RequestStepped

# Of one step: more would take the engine's time.
_MAX_SAMPLED_ROWS = 16
_EVENT_BYTES = 400  # of objects around the bytes


@dataclass
class TrackedRequest:
    """The state of a request of the session.

    Attributes:
        key: its number; None if it is not recorded.
        greedy: whether the engine samples its largest logit.
        steps: number of its steps.
        known: whether the file, or the queue, has its history before the next step.
    """

    key: int | None
    greedy: bool
    steps: int = 0
    known: bool = False


@dataclass(frozen=True)
class StepReply:
    """The reply to a step.

    Attributes:
        edits: of all rows.
        reads: the rows of which the server, or a program here, has read logits.
        errors: the message of each failed request.
    """

    edits: Edits
    reads: Collection[int]
    errors: Mapping[Any, str]


class EndItem:
    """The end of a request."""

    steps = 0
    size_bytes = _EVENT_BYTES

    def __init__(self, key: int) -> None:
        self._key = key

    def events(self) -> Iterator[RecordedEvent]:
        """Yield the event."""
        yield RecordedEvent(request_ended=RequestEnded(key=self._key))


@dataclass
class StepPart:
    """A recorded request in a step.

    Attributes:
        tracked: the request.
        began: its event before this step, without the processors; None if it is known.
        chain: describes the processors; called on the writer's thread.
        step: its event in this step, without the reply.
        rows: row of the session's step, and draft offset.
    """

    tracked: TrackedRequest
    began: RequestBegan | None
    chain: Callable[[], Iterable[RecordedProcessor]]
    step: RequestStepped
    rows: list[tuple[int, int]]


class StepItem:
    """A step of the session, before and after its reply.

    Args:
        parts: its requests that are recorded, one or more.
        options: the number of logits to sample.
        greedy: whether the engine samples the largest logit of each row.

    Attributes:
        size_bytes, steps: see `Item`.
    """

    def __init__(self, parts: list[StepPart], options: RecordOptions, *, greedy: bool) -> None:
        self.parts = parts
        self._options = options
        self._greedy = greedy
        self._reply: StepReply | None = None
        self._sampled: list[int] = []
        self._before: Taken | None = None
        self._after: Taken | None = None
        self.steps = len(parts)
        self.size_bytes = _EVENT_BYTES * len(parts) + sum(
            part.step.ByteSize() + (0 if part.began is None else part.began.ByteSize()) for part in parts
        )

    def sample(self, logits: Any) -> None:
        """Take the logits before the chains. Does nothing if they are not those of the step."""
        every = self._options.sample_every
        due = [part for part in self.parts if every and part.step.index % every == 0]
        self._sampled = sorted(row for part in due for row, _ in part.rows)[:_MAX_SAMPLED_ROWS]
        if len(getattr(logits, "shape", ())) != 2 or len(logits) <= max(self._sampled, default=-1):
            self._sampled = []
        self._before = take(logits, self._sampled, self._options.top_k) if self._sampled else None

    def finish(self, reply: StepReply, errors: Mapping[int, str], logits: Any | None) -> None:
        """Take the reply, and the logits after the chains.

        Args:
            reply: the edits.
            errors: the message of each failed request, by key.
            logits: the rows; None if the engine applies the edits elsewhere.
        """
        self._reply = reply
        for part in self.parts:
            part.step.error = errors.get(part.step.key, "")
        if self._before is not None and logits is not None:
            self._after = take(logits, self._sampled, self._options.top_k, self._before)
            self.size_bytes += self._before.size_bytes + self._after.size_bytes
        self.size_bytes += reply.edits.ids.nbytes + reply.edits.values.nbytes

    def events(self) -> Iterator[RecordedEvent]:
        """Yield the events of its requests. Called on the writer's thread."""
        reply = self._reply
        edits = {} if reply is None else _by_row(reply.edits)
        tops: dict[int, tuple[Any, Any]] = {}
        if self._before is not None and self._after is not None:
            tops = dict(zip(self._sampled, zip(self._before.tops(), self._after.tops(), strict=True), strict=True))
        for part in self.parts:
            if part.began is not None:
                part.began.processors.extend(part.chain())
                yield RecordedEvent(request_began=part.began)
            part.step.greedy, part.step.unfinished = self._greedy, reply is None
            for row, offset in part.rows:
                before, after = tops.get(row, (None, None))
                recorded = part.step.rows.add(draft_offset=offset, edits=edits.get(row), before=before, after=after)
                if reply is not None and row in reply.reads:
                    recorded.ClearField("edits")
                elif reply is not None:
                    recorded.edits.SetInParent()  # also if there are none
            yield RecordedEvent(request_stepped=part.step)


def _by_row(edits: Edits) -> dict[int, common_pb2.Edits]:
    """Return the edits of each row, as edits of row 0. Those of one row are adjacent."""
    found, end, offsets = {}, 0, edits.offsets.tolist()
    for row, group in groupby(edits.rows.tolist()):
        begin, end = end, end + len(list(group))
        ids, kinds = slice(offsets[begin], offsets[end]), edits.kinds[begin:end]
        values = edits.values[ids] if EditKind.BIAS in kinds.tobytes() else edits.values[:0]
        of_row = np.zeros(end - begin, np.int32), kinds, edits.offsets[begin : end + 1] - offsets[begin]
        found[row] = Edits(*of_row, edits.ids[ids], values).to_proto()
    return found
