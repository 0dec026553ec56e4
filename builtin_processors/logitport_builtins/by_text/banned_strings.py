"""`banned_strings`: texts that never occur in the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_builtins.by_text.base import TextProcessor
from logitport_builtins.by_text.matcher import Followed, Matcher, matcher
from logitport_builtins.by_text.reading import read_strings, tokenizer_of
from logitport_builtins.first_denial import FirstDenial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest


class BannedStrings(TextProcessor):
    """Denies each id after which the text of the output would contain one of the strings, in whatever way it is split.

    The text has the output's ids without special tokens, in bytes: upper and lower case differ, and a string may
    begin or end inside an id. The prompt does not count.

    Parameters:
        banned_strings: list of at most 256 texts, none empty, of at most 16 KiB together.
        tokenizer: optional, the operator's name of the tokenizer; by default the session's, or the only one.
    """

    builtin_name = "banned_strings"

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> tuple[bytes, ...]:
        """Return the strings, each once. Raises InvalidArgument, PayloadError."""
        return read_strings(cls.builtin_name, params)

    def start(self, request: EditRequest) -> None:
        """Read the output. Raises InvalidArgument, PayloadError."""
        if request.state is None:
            used = matcher(tokenizer_of(self.builtin_name, request), self.read(request.params))
        else:  # of an earlier block: nothing is built within a step
            used = request.state.matcher
        request.state = _BannedState(used, request.history.output_token_ids.tolist())

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """DENY of the ids that would complete a string."""
        state: _BannedState = request.state
        edits.deny(state.matcher.containing(state.position))
        completing = state.matcher.completing(state.position)
        for ids in completing:
            edits.deny(ids)
        if state.is_first_denial(any(ids.size for ids in completing)):
            edits.event("ids_denied")


class _BannedState(Followed):
    """The output so far, and its first row that denies ids because of the text before them."""

    __slots__ = ("_first_denial",)

    def __init__(self, used: Matcher, output: Sequence[int]) -> None:
        super().__init__(used, output)
        self._first_denial = FirstDenial()

    def rewind(self, length: int) -> None:
        super().rewind(length)
        self._first_denial.rewind(length)

    def is_first_denial(self, denies: bool) -> bool:
        """Whether the row after the output is the first that denies such ids, if it `denies` some."""
        return self._first_denial.is_at(0, len(self._positions) - 1, denies, self._denying)

    def _denying(self, begin: int) -> Iterator[int]:
        for length, position in enumerate(self._positions[begin:-1], begin):
            if any(ids.size for ids in self.matcher.completing(position)):
                yield length
