"""The rows of a recorded request, each with the same row of new processors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.shipping.calls import unpack_int32
from logitport.shipping.request import Request
from logitport_proto.common_pb2 import ON_ERROR_SKIP
from logitport_recording.reading.event_fields import drafts_of, history_of, json_object
from logitport_testing.replaying.row_difference import difference, effect_of, row_of
from logitport_testing.runner import RowStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport_proto.processing_pb2 import OpenSession
    from logitport_proto.recording_pb2 import RecordedRow, RequestStepped
    from logitport_recording.reading.reader import RequestPart
    from logitport_testing.replaying.row_difference import RowDifference
    from logitport_testing.runner import ChainRunner

    Chain = Sequence[tuple[Any, Mapping[str, Any]]]

# How far logits of a chain that reads them may differ, by the engine's datatype.
_TOLERANCES = {"FP32": 1e-4, "FP16": 5e-3, "BF16": 4e-2}
_SLOT, _OTHER_SLOT = 0, 1


@dataclass(frozen=True, eq=False)
class ComparedRow:
    """A recorded row, and the same row with the new version.

    Attributes:
        step: its step of the request.
        row: what was recorded of it.
        history: the ids that it follows.
        kept: how many of them the row before it follows, too.
        chosen: the id that the engine chose after it; None if this is not known.
        compared: whether enough was recorded to compare it. If not, the new version did not run.
        difference: None if the row was not compared, or if one of both versions has failed.
        before: the row before the chain; zeros if its logits were not recorded and the chains need none, or None.
        recorded, new: the rows after both chains, float32[vocab_size]; None if they are not known.
        error: the error of the new version, or "".
        not_run: why no new version runs; "" if one does.
    """

    step: RequestStepped
    row: RecordedRow
    history: Sequence[int]
    kept: int
    chosen: int | None
    compared: bool = False
    difference: RowDifference | None = None
    before: NDArray[np.float32] | None = None
    recorded: NDArray[np.float32] | None = None
    new: NDArray[np.float32] | None = None
    error: str = ""
    not_run: str = ""

    @property
    def has_logits(self) -> bool:
        """Whether the logits were recorded; otherwise the rows show the edits alone."""
        return self.row.HasField("before")

    @property
    def differs(self) -> bool:
        """Whether the new version has another effect."""
        return self.compared and (bool(self.difference) or bool(self.error) != bool(self.step.error))

    @property
    def chosen_denied(self) -> bool:
        """Whether the new version denies the id that the engine chose."""
        if self.chosen is None or self.new is None or not 0 <= self.chosen < len(self.new):
            return False
        return bool(np.isneginf(self.new[self.chosen]))


def recorded_rows(opening: OpenSession, part: RequestPart, not_run: str) -> Iterator[ComparedRow]:
    """Yield the rows of a part as they were recorded, without running a processor: `not_run` says why none runs."""
    for row in _rows(part):
        before, recorded = _known_logits(row.row, opening.vocab_size)
        if row.row.HasField("edits"):
            before = np.zeros(opening.vocab_size, np.float32) if before is None else before
            recorded = before + effect_of(row.row.edits, opening.vocab_size)
        yield replace(row, before=before, recorded=recorded, not_run=not_run)


def _rows(part: RequestPart) -> Iterator[ComparedRow]:
    """Yield the rows of a part in their order, with their histories."""
    history = history_of(part.began)
    kept = len(history)
    for index, step in enumerate(part.steps):
        kept = min(kept, step.base_length, len(history))
        del history[step.base_length :]
        history += unpack_int32(step.new_token_ids).tolist()
        drafts, last_seen = drafts_of(step), None
        visits = {offset: visit for visit, (offset, _) in enumerate(drafts.walk())}
        following = part.steps[index + 1] if index + 1 < len(part.steps) else None
        for row in sorted(step.rows, key=lambda one: visits.get(one.draft_offset, len(drafts))):
            seen = drafts.path(min(row.draft_offset, len(drafts)))
            if last_seen is not None:
                kept = len(history) + _common(last_seen, seen)
            chosen = None if following is None else _chosen(following, len(history), seen)
            yield ComparedRow(step, row, history + seen, kept, chosen)
            last_seen = seen
        if last_seen is not None:
            kept = len(history) + len(last_seen)


def _common(ids: Sequence[int], others: Sequence[int]) -> int:
    """Count the equal ids at the beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, others, strict=False)))


def _chosen(following: RequestStepped, length: int, drafts: Sequence[int]) -> int | None:
    """Return the id after a row: the first new one of the next step that continues there."""
    new_ids = unpack_int32(following.new_token_ids).tolist()
    depth = len(drafts)
    if following.base_length != length or depth >= len(new_ids) or new_ids[:depth] != drafts:
        return None
    chosen: int = new_ids[depth]
    return chosen


def _known_logits(row: RecordedRow, vocab_size: int) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Make the rows before and after the chain; None if they were not sampled."""
    before = row_of(row.before, vocab_size) if row.HasField("before") else None
    return before, row_of(row.after, vocab_size) if row.HasField("after") else None


class PartPlayer:
    """Runs new processors on the rows of one part, in a batch of its own.

    Attributes:
        chain: the names of the processors, as they run.

    Raises:
        LogitportError: a processor is refused.
    """

    def __init__(self, runner: ChainRunner, opening: OpenSession, part: RequestPart, chain: Chain) -> None:
        recorded = part.began.request
        self._vocab_size = opening.vocab_size
        self._tolerance = _TOLERANCES.get(opening.datatype, 1e-4)
        self._part = part
        self._batch = runner.open(
            opening.vocab_size, tokenizer_id=opening.tokenizer_id, eos_token_ids=opening.eos_token_ids
        )
        request = Request(
            unpack_int32(recorded.prompt_ids).tolist(),
            unpack_int32(recorded.output_ids).tolist(),
            list(chain),
            recorded.request_id,
            json_object(recorded.sampling_params),
            on_error="skip" if recorded.on_error == ON_ERROR_SKIP else "abort",
        )
        infos = self._batch.add(_SLOT, request)
        self.chain = tuple(info.name for info in infos)
        self._reads = any(info.reads_logits for info in infos)
        self._batch.add(_OTHER_SLOT, Request())  # not greedy
        self._shared = len(history_of(part.began))  # ids that the batch has in common with the history

    def rows(self) -> Iterator[ComparedRow]:
        """Yield the rows in their order. The first one with an error is the last one."""
        for row in _rows(self._part):
            self._shared = min(self._shared, row.kept)
            compared = self._play(row)
            yield compared
            if compared.error:
                return

    def _play(self, row: ComparedRow) -> ComparedRow:
        step, has_edits = row.step, row.row.HasField("edits")
        raw, after = _known_logits(row.row, self._vocab_size)
        by_logits = not has_edits or self._reads
        if step.unfinished or (by_logits and (raw is None or after is None) and not step.error):
            return replace(row, before=raw, recorded=after)
        given = raw if by_logits and raw is not None else np.zeros(self._vocab_size, np.float32)
        new, error = self._step(row.history, given, greedy=step.greedy)
        if error or step.error:
            return replace(row, compared=True, before=raw, error=error)
        if not by_logits:
            effect = effect_of(row.row.edits, self._vocab_size)
            found = difference(effect, new)
            if raw is not None:
                given, effect, new = raw, raw + effect, raw + new
            return replace(row, compared=True, difference=found, before=given, recorded=effect, new=new)
        if has_edits:  # the new version reads logits, the recorded one did not
            after = given + effect_of(row.row.edits, self._vocab_size)
            found = difference(after, new, tolerance=self._tolerance)
        else:
            assert after is not None  # noqa: S101 - checked above
            ids = unpack_int32(row.row.before.ids)  # the logits of other ids are not known before the chain
            found = difference(after[ids], new[ids], ids, self._tolerance)
        return replace(row, compared=True, difference=found, before=given, recorded=after, new=new)

    def _step(
        self, history: Sequence[int], logits: NDArray[np.float32], *, greedy: bool
    ) -> tuple[NDArray[np.float32], str]:
        """The row after the chain, and the request's error."""
        rows = [RowStep(_SLOT, self._shared, history[self._shared :])]
        given = [logits]
        if not greedy:  # then a processor that never changes the best id is called for a greedy request, too
            rows.append(RowStep(_OTHER_SLOT, 0))
            given.append(np.zeros_like(logits))
        self._shared = len(history)
        result = self._batch.step(rows, np.stack(given))[0]
        return result.logits, "" if result.error is None else str(result.error)
