"""The processor: parameters in, index looked up, ids denied."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from logitport.processors import EditProcessor
from logitport_builtins.no_repeat_ngram.index import FollowerIndex, NGramRule
from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.core.edits import RowEdits
    from logitport.processors import EditRequest

_WHOLE_HISTORY = sys.maxsize


class NoRepeatNGram(EditProcessor):
    """Denies every id that would repeat an n-gram of the history, prompt and output.

    Parameters:
        ngram_size: length of the n-grams, 1 or more; with 1, no id of the window comes again.
        window_size: optional, 1 or more: only n-grams within the last so many ids count. The whole history
            if absent; with fewer than `ngram_size` there are none.
        whitelist_token_ids: optional list of ids that are never denied.

    The rule is that of SGLang 0.5.23's `DeepseekOCRNoRepeatNGramLogitProcessor`, where `window_size` must be given.
    Ids of the history outside the vocabulary (an engine's stand-ins for images) are ignored; there they are an error.
    """

    builtin_name = "no_repeat_ngram"

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidParams."""
        cls.rule(params)

    @classmethod
    def rule(cls, params: Mapping[str, Any]) -> NGramRule:
        """What `params` ask for. Raises InvalidParams."""
        given = Params("no_repeat_ngram", params, ("ngram_size", "window_size", "whitelist_token_ids"))
        window = given.integer("window_size", minimum=1) if "window_size" in given else _WHOLE_HISTORY
        whitelist = given.token_ids("whitelist_token_ids").tolist() if "whitelist_token_ids" in given else ()
        return NGramRule(given.integer("ngram_size", minimum=1), window, frozenset(whitelist))

    def start(self, request: EditRequest) -> None:
        """Index the history, all at once. Raises InvalidParams."""
        request.state = FollowerIndex(request.history, self.rule(request.params), request.vocab_size)

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Index the n-gram that `token_id` completes."""
        request.state.append(request.history, token_id)

    def rewind(self, request: EditRequest) -> None:
        """Take the latest n-grams out of the index."""
        request.state.rewind(request.history)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """DENY of the ids that would complete an n-gram for the second time."""
        followers = request.state.followers(request.history)
        if followers.size:
            edits.deny(followers)
