"""The processor: reads the parameters, looks up repeated n-grams, and denies the ids that complete them."""

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
        ngram_size: length of the n-grams, 1 or more; with 1, no id of the window is repeated.
        window_size: optional, 1 or more: the number of last ids in which n-grams count; by default the whole history.
            A window smaller than `ngram_size` holds no n-gram.
        whitelist_token_ids: optional list of ids that are never denied.

    The rule is the same as in SGLang 0.5.23's `DeepseekOCRNoRepeatNGramLogitProcessor`, which requires `window_size`.
    Ids outside the vocabulary (an engine's placeholders for images) are ignored; in SGLang they are an error.
    """

    builtin_name = "no_repeat_ngram"

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidParams."""
        cls.rule(params)

    @classmethod
    def rule(cls, params: Mapping[str, Any]) -> NGramRule:
        """Read the rule from `params`. Raises InvalidParams."""
        given = Params("no_repeat_ngram", params, ("ngram_size", "window_size", "whitelist_token_ids"))
        window = given.integer("window_size", minimum=1) if "window_size" in given else _WHOLE_HISTORY
        whitelist = given.token_ids("whitelist_token_ids").tolist() if "whitelist_token_ids" in given else ()
        return NGramRule(given.integer("ngram_size", minimum=1), window, frozenset(whitelist))

    def start(self, request: EditRequest) -> None:
        """Index all of the history. Raises InvalidParams."""
        request.state = FollowerIndex(request.history, self.rule(request.params), request.vocab_size)

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Index the n-gram that `token_id` completes."""
        request.state.append(request.history, token_id)

    def rewind(self, request: EditRequest) -> None:
        """Remove the latest n-grams from the index."""
        request.state.rewind(request.history)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """DENY of the ids that would complete an n-gram again."""
        followers = request.state.followers(request.history)
        if followers.size:
            edits.deny(followers)
