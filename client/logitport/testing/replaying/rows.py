"""The rows of a recorded request, each beside the same row with new processors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.request import Request
from logitport.testing.replaying.effects import difference, effect_of, row_of
from logitport.testing.runner import RowStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.recording.events import RecordedRow, RequestStepped, SessionOpened
    from logitport.recording.reader import RequestPart
    from logitport.testing.replaying.effects import RowDifference
    from logitport.testing.runner import Runner

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
        chosen: the id that the engine chose after it; None if this is not known.
        compared: whether enough was recorded to compare it. If not, the new version did not run.
        difference: None if the row was not compared, or if one of both versions has failed.
        before: the row before the chain; zeros if its logits were not recorded and the chains need none, or None.
        recorded, new: the rows after both chains, float32[vocab_size]; None if they are not known.
        error: the error of the new version; "" if it has none.
        not_run: why no new version runs; "" if one does.
    """

    step: RequestStepped
    row: RecordedRow
    history: Sequence[int]
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
        return self.row.before is not None

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


def recorded_rows(opened: SessionOpened, part: RequestPart, not_run: str) -> Iterator[ComparedRow]:
    """Yield the rows of a part as they were recorded, without running a processor.

    Args:
        opened: the session.
        part: the part.
        not_run: why no new version runs.
    """
    history: list[int] = [*part.began.prompt.tolist(), *part.began.output.tolist()]
    for place, step in enumerate(part.steps):
        del history[step.base_length :]
        history += step.new_ids.tolist()
        following = part.steps[place + 1] if place + 1 < len(part.steps) else None
        for row in sorted(step.rows, key=lambda one: one.offset):
            before = None if row.before is None else row_of(row.before, opened.vocab_size)
            recorded = None if row.after is None else row_of(row.after, opened.vocab_size)
            if row.edits is not None:
                before = np.zeros(opened.vocab_size, np.float32) if before is None else before
                recorded = before + effect_of(row.edits, opened.vocab_size)
            chosen = _chosen(step, row, following, len(history))
            seen = history + step.draft_ids[: row.offset].tolist()
            yield ComparedRow(step, row, seen, chosen, before=before, recorded=recorded, not_run=not_run)


class PartPlayer:
    """Runs new processors on the rows of one part, in a batch of its own.

    Args:
        runner: runs them.
        opened: the session.
        part: the part.
        chain: (processor, parameters) pairs.

    Attributes:
        chain: the names of the processors, as they run.

    Raises:
        LogitportError: a processor is refused.
    """

    def __init__(self, runner: Runner, opened: SessionOpened, part: RequestPart, chain: Chain) -> None:
        began = part.began
        self._vocab_size = opened.vocab_size
        self._tolerance = _TOLERANCES.get(opened.datatype, 1e-4)
        self._part = part
        self._batch = runner.open(
            opened.vocab_size, tokenizer_id=opened.tokenizer_id, eos_token_ids=opened.eos_token_ids
        )
        request = Request(
            began.prompt.tolist(),
            began.output.tolist(),
            list(chain),
            began.request_id,
            began.sampling_params,
            on_error="skip" if began.on_error == "skip" else "abort",
        )
        infos = self._batch.add(_SLOT, request)
        self.chain = tuple(info.name for info in infos)
        self._reads = any(info.reads_logits for info in infos)
        self._batch.add(_OTHER_SLOT, Request())  # not greedy
        self._history: list[int] = [*began.prompt.tolist(), *began.output.tolist()]
        self._shared = len(self._history)  # ids that the batch has in common with the history

    def rows(self) -> Iterator[ComparedRow]:
        """Yield the rows in their order. The first one with an error is the last one."""
        steps = self._part.steps
        for place, step in enumerate(steps):
            del self._history[step.base_length :]
            self._shared = min(self._shared, step.base_length)
            self._history += step.new_ids.tolist()
            following = steps[place + 1] if place + 1 < len(steps) else None
            for row in sorted(step.rows, key=lambda one: one.offset):
                compared = self._play(step, row, _chosen(step, row, following, len(self._history)))
                yield compared
                if compared.error:
                    return
            self._shared = min(self._shared, len(self._history))

    def _play(self, step: RequestStepped, row: RecordedRow, chosen: int | None) -> ComparedRow:
        raw = None if row.before is None else row_of(row.before, self._vocab_size)
        by_logits = row.edits is None or self._reads
        history = self._history + step.draft_ids[: row.offset].tolist()
        if not step.finished or (by_logits and (raw is None or row.after is None) and not step.error):
            recorded = None if row.after is None else row_of(row.after, self._vocab_size)
            return ComparedRow(step, row, history, chosen, before=raw, recorded=recorded)
        given = raw if by_logits and raw is not None else np.zeros(self._vocab_size, np.float32)
        new, error = self._step(history, given, greedy=step.greedy)
        if error or step.error:
            return ComparedRow(step, row, history, chosen, compared=True, before=raw, error=error)
        if not by_logits:
            effect = effect_of(row.edits or (), self._vocab_size)
            found = difference(effect, new)
            if raw is not None:
                return ComparedRow(step, row, history, chosen, True, found, raw, raw + effect, raw + new)
            return ComparedRow(step, row, history, chosen, True, found, given, effect, new)
        if row.edits is not None:  # the new version reads logits, the recorded one did not
            recorded = given + effect_of(row.edits, self._vocab_size)
            found = difference(recorded, new, tolerance=self._tolerance)
        else:
            assert row.before is not None  # noqa: S101 - checked above
            assert row.after is not None  # noqa: S101
            recorded = row_of(row.after, self._vocab_size)
            ids = row.before.ids  # the logits of other ids are not known before the chain
            found = difference(recorded[ids], new[ids], ids, self._tolerance)
        return ComparedRow(step, row, history, chosen, True, found, given, recorded, new)

    def _step(
        self, history: list[int], logits: NDArray[np.float32], *, greedy: bool
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


def _chosen(step: RequestStepped, row: RecordedRow, following: RequestStepped | None, length: int) -> int | None:
    """The id after a row: the first new one of the next step that continues there."""
    if following is None or not len(following.new_ids) or following.base_length != length:
        return None
    if row.offset >= len(following.new_ids) or not np.array_equal(
        following.new_ids[: row.offset], step.draft_ids[: row.offset]
    ):
        return None
    return int(following.new_ids[row.offset])
