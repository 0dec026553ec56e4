"""The blocks of one history: where each begins, and its phase."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from logitport.core.compiled import core
from logitport.phases.phase_tags import ANSWER, ANY, HEADER, THINKING, PhaseTag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport.core.history import History
    from logitport.phases.phase_tags import PhaseTags

_STARTS = {"answer": ANSWER, "either": ANSWER, "thinking": THINKING, "header": HEADER}
# A tag that ends a block in the prompt decides only among its last ids, with a few for newlines: others are of earlier
# turns. A thinking block that the prompt leaves open counts wherever it began.
_NEAR = 4
_BITS = 2  # of a phase's number

# Ids, number of the phase that begins, number of the phase that ends, and whether it counts only first in a block.
TagFields: TypeAlias = "tuple[Sequence[int], int, int, bool]"


class PythonPhaseTracker:
    """Follows the phases of one history. Reads each id once.

    Args:
        history: any history.
        tags: in the order in which equally long ones count.
        starts_in: number of the phase of an output that the prompt does not decide.
        opening_id: id of a start tag that stays possible before the answer's first id; -1 for none.
        newline: an id that may precede it; -1 for none.

    Attributes:
        phase: number of the phase of the history's next id.
        begin: where its block begins: the history's length just after the tag. In the prompt for a block that began
            there.
    """

    __slots__ = ("_blocks", "_last_ids", "_length", "_newline", "_opening_id", "_opens", "_starts_in", "_tags")

    def __init__(
        self, history: History, tags: Sequence[TagFields], starts_in: int, opening_id: int = -1, newline: int = -1
    ) -> None:
        fields = [PhaseTag(tuple(ids), begins, within, first) for ids, begins, within, first in tags]
        self._tags = sorted(fields, key=lambda tag: -len(tag.ids))
        self._last_ids = frozenset(tag.ids[-1] for tag in fields)
        self._starts_in = starts_in
        self._opening_id = opening_id
        self._newline = newline
        self.restart(history)

    @property
    def phase(self) -> int:
        return self._blocks[-1] & ((1 << _BITS) - 1)

    @property
    def begin(self) -> int:
        return self._blocks[-1] >> _BITS

    def block_at(self, length: int) -> tuple[int, int]:
        """The phase of the id after this length of the history, and where its block begins. Not before the output."""
        block = self._blocks[bisect_left(self._blocks, (length + 1) << _BITS, lo=1) - 1]
        return block & ((1 << _BITS) - 1), block >> _BITS

    def restart(self, history: History) -> None:
        """Read a history from its beginning."""
        prompt_length = history.prompt_length
        # The history's lengths where blocks began, with their phases. The first is never removed: it stands for all of
        # the prompt.
        self._blocks = array("q", [self._starts_in])
        for length in self._candidates(history, 0, prompt_length):
            self._record(history, length)
        is_decided = len(self._blocks) > 1 and (self.phase == THINKING or self.begin >= prompt_length - _NEAR)
        first = self._blocks[-1] if is_decided else prompt_length << _BITS | self._starts_in
        self._blocks = array("q", [first])
        self._opens = not is_decided and self._opening_id >= 0
        self._length = prompt_length
        self.read(history)

    def read(self, history: History) -> None:
        """Follow a history after ids were appended."""
        begin, self._length = self._length, history.length
        if self._length == begin + 1:  # much faster than with an array
            if history.at(begin) in self._last_ids:
                self._record(history, begin + 1)
            return
        for length in self._candidates(history, begin, self._length):
            self._record(history, length)

    def rewind(self, history: History) -> None:
        """Follow a history that was just cut back to its present length."""
        length = history.length
        while len(self._blocks) > 1 and self.begin > length:
            self._blocks.pop()
        self._length = min(self._length, length)

    def exempt_id(self, history: History) -> int:
        """The id that no edit may change now: it opens the first thinking block. -1 if there is none."""
        if not self._opens or len(self._blocks) > 1:
            return -1
        output = history.output_token_ids
        if not output.size:
            return self._opening_id
        before = self._newline >= 0 and output.size < _NEAR and bool((output == self._newline).all())
        return self._opening_id if before else -1

    def _candidates(self, history: History, begin: int, end: int) -> Iterable[int]:
        """The lengths in (begin, end] where the last id is the last one of a tag."""
        is_last = np.isin(history.token_ids[begin:end], np.array([*self._last_ids], np.int32))
        found: list[int] = (np.flatnonzero(is_last) + begin + 1).tolist()
        return found

    def _record(self, history: History, length: int) -> None:
        """Record the block that begins at a length, if a tag ends there."""
        ids = history.token_ids
        for tag in self._tags:
            size = len(tag.ids)
            if length < size or tuple(ids[length - size : length].tolist()) != tag.ids:
                continue
            in_prompt = length <= history.prompt_length  # a template may write an end tag alone
            is_first = length - size <= max(self.begin, history.prompt_length)
            if in_prompt or (tag.within in (ANY, self.phase) and (is_first or not tag.first_only)):
                self._blocks.append(length << _BITS | tag.begins)
            return


if TYPE_CHECKING:
    PhaseTracker = PythonPhaseTracker
else:
    PhaseTracker = PythonPhaseTracker if core is None else core.PhaseTracker


def tracker_of(tags: PhaseTags, history: History) -> PhaseTracker:
    """Return the tracker of a history."""
    return PhaseTracker(history, *tracker_fields(tags))


def tracker_fields(tags: PhaseTags) -> tuple[list[TagFields], int, int, int]:
    """Return the arguments of a tracker after its history."""
    opening_id, newline = tags.opening_id, tags.newline
    return (
        [(list(tag.ids), tag.begins, tag.within, tag.first_only) for tag in tags.tags],
        _STARTS[tags.starts_in],
        -1 if opening_id is None else opening_id,
        -1 if newline is None else newline,
    )
