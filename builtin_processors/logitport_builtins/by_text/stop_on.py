"""`stop_on`: texts that end the output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument
from logitport_builtins.by_text.base import TextProcessor
from logitport_builtins.by_text.matcher import Followed, Matcher, matcher
from logitport_builtins.by_text.reading import read_strings, tokenizer_of
from logitport_builtins.params import check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest


class StopOn(TextProcessor):
    """Allows only end-of-sequence ids as soon as the text of the output contains one of the strings.

    The text is as for `banned_strings`. The id that completes a string stays, with the text that it has after the
    string. The prompt does not count.

    Parameters:
        stop_on: list of at most 256 texts, none empty, of at most 16 KiB together.
        tokenizer: optional, the operator's name of the tokenizer; by default the session's, or the only one.

    The ids that end a sequence are the session's, or else those in the files next to the tokenizer.
    """

    builtin_name = "stop_on"

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> tuple[bytes, ...]:
        """Return the strings, each once. Raises InvalidArgument, PayloadError."""
        return read_strings(cls.builtin_name, params)

    def start(self, request: EditRequest) -> None:
        """Read the output. Raises InvalidArgument, PayloadError."""
        output = request.history.output_token_ids.tolist()
        if request.state is not None:  # of an earlier block: nothing is built within a step
            request.state = _StopState(request.state.matcher, output, request.state.ends)
            return
        strings = self.read(request.params)
        tokenizer = tokenizer_of(self.builtin_name, request)
        ends = request.eos_token_ids or tokenizer.eos_token_ids
        if not ends:
            raise InvalidArgument(
                "stop_on: no end-of-sequence id is known, so the output could not end: open the session with "
                f"eos_token_ids, or put generation_config.json next to the file of tokenizer {tokenizer.name!r}"
            )
        check_in_vocabulary(self.builtin_name, ends, request.vocab_size)
        request.state = _StopState(matcher(tokenizer, strings), output, np.array(ends, np.int32))

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """ALLOW of the end-of-sequence ids, after a string."""
        state: _StopState = request.state
        if state.position.found:
            edits.allow(state.ends)


class _StopState(Followed):
    """The output so far, and the ids that end a sequence, int32[n]."""

    __slots__ = ("ends",)

    def __init__(self, used: Matcher, output: Sequence[int], ends: NDArray[np.int32]) -> None:
        super().__init__(used, output)
        self.ends = ends
