"""`banned_strings`: texts that never occur in the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_builtins.by_text.base import TextProcessor
from logitport_builtins.by_text.matcher import Followed, matcher
from logitport_builtins.by_text.reading import read_strings, tokenizer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        strings = self.read(request.params)
        used = matcher(tokenizer_of(self.builtin_name, request), strings)
        request.state = Followed(used, request.history.output_token_ids.tolist())

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """DENY of the ids that would complete a string."""
        state: Followed = request.state
        for ids in state.matcher.completing(state.position):
            edits.deny(ids)
