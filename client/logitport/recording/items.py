"""Items of a recording's queue: steps and ends of requests. They become events on the writer's thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.recording.events import RecordedRow, RequestEnded, RequestStepped
from logitport.recording.top_logits import take

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from logitport.core.edits import Edits
    from logitport.core.row_edits import RowEdits
    from logitport.recording.descriptions import BeganRequest
    from logitport.recording.events import Event, RequestBegan
    from logitport.recording.options import RecordOptions
    from logitport.recording.top_logits import Taken

# Of one step: more would take the engine's time.
_MAX_SAMPLED_ROWS = 16
_EVENT_BYTES = 400  # of objects around the arrays


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

    def events(self) -> Iterator[Event]:
        """Yield the event."""
        yield RequestEnded(self._key)


@dataclass
class StepPart:
    """A recorded request in a step."""

    tracked: TrackedRequest
    began: BeganRequest | None
    index: int
    base_length: int
    new_ids: NDArray[np.int32]
    draft_ids: tuple[int, ...]
    rows: list[tuple[int, int]]  # row of the step, offset
    error: str = ""


class StepItem:
    """A step of the session, before and after its reply.

    Args:
        parts: its requests that are recorded, one or more.
        options: the number of logits to sample.
        describe: makes the event of a request, by its key; called on the writer's thread.
        greedy: whether the engine samples the largest logit of each row.

    Attributes:
        size_bytes, steps: see `Item`.
    """

    def __init__(
        self,
        parts: list[StepPart],
        options: RecordOptions,
        describe: Callable[[int, BeganRequest], RequestBegan],
        *,
        greedy: bool,
    ) -> None:
        self.parts = parts
        self._options = options
        self._describe = describe
        self._greedy = greedy
        self._reply: StepReply | None = None
        self._sampled: list[int] = []
        self._before: Taken | None = None
        self._after: Taken | None = None
        self.steps = len(parts)
        self.size_bytes = _EVENT_BYTES * len(parts) + sum(
            part.new_ids.nbytes + (part.began.prompt.nbytes + part.began.output.nbytes if part.began else 0)
            for part in parts
        )

    def sample(self, logits: Any) -> None:
        """Take the logits before the chains. Does nothing if they are not those of the step."""
        every = self._options.sample_every
        due = [part for part in self.parts if every and part.index % every == 0]
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
            part.error = errors.get(part.tracked.key or 0, "")
        if self._before is not None and logits is not None:
            self._after = take(logits, self._sampled, self._options.top_k, self._before)
            self.size_bytes += self._before.size_bytes + self._after.size_bytes
        self.size_bytes += reply.edits.ids.nbytes + reply.edits.values.nbytes

    def events(self) -> Iterator[Event]:
        """Yield the events of its requests. Called on the writer's thread."""
        by_row: list[RowEdits] = []
        reads: Collection[int] = ()
        if self._reply is not None:
            rows = 1 + max((row for part in self.parts for row, _ in part.rows), default=-1)
            rows = max(rows, 1 + int(self._reply.edits.rows.max(initial=-1)))
            by_row, reads = self._reply.edits.unpack(rows), self._reply.reads
        tops: dict[int, tuple[Any, Any]] = {}
        if self._before is not None and self._after is not None:
            tops = dict(zip(self._sampled, zip(self._before.tops(), self._after.tops(), strict=True), strict=True))
        for part in self.parts:
            key = part.tracked.key or 0
            if part.began is not None:
                yield self._describe(key, part.began)
            yield RequestStepped(
                key,
                part.index,
                part.base_length,
                part.new_ids,
                np.array(part.draft_ids, np.int32),
                tuple(
                    RecordedRow(
                        offset,
                        None if self._reply is None or row in reads else tuple(by_row[row]),
                        *tops.get(row, (None, None)),
                    )
                    for row, offset in part.rows
                ),
                greedy=self._greedy,
                finished=self._reply is not None,
                error=part.error,
            )
