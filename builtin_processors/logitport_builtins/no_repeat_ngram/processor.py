"""The processor: reads the parameters. The index denies the ids that would complete an n-gram again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport.core.compiled import core
from logitport.stateful import StatefulEditProcessor
from logitport_builtins.no_repeat_ngram.index import NGramIndex
from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.processors import EditRequest

_LONGEST = 2**31 - 1  # no history is longer


@dataclass(frozen=True)
class NGramRule:
    """Forbids a repeated n-gram of `size` ids within the last `window` ids, unless it ends in an id of `whitelist`."""

    size: int
    window: int
    whitelist: frozenset[int]


class NoRepeatNGram(StatefulEditProcessor):
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
    only_denies = True
    bytes_per_id = 64 if core is None else 16

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        cls.rule(params)

    @classmethod
    def rule(cls, params: Mapping[str, Any]) -> NGramRule:
        """Read the rule from `params`. Raises InvalidArgument."""
        given = Params("no_repeat_ngram", params, ("ngram_size", "window_size", "whitelist_token_ids"))
        window = given.integer("window_size", minimum=1) if "window_size" in given else _LONGEST
        whitelist = given.token_ids("whitelist_token_ids").tolist() if "whitelist_token_ids" in given else ()
        return NGramRule(given.integer("ngram_size", minimum=1), window, frozenset(whitelist))

    def start(self, request: EditRequest) -> None:
        """Index all of the history. Raises InvalidArgument."""
        rule, vocab_size = self.rule(request.params), request.vocab_size
        whitelist = sorted(token_id for token_id in rule.whitelist if 0 <= token_id < vocab_size)
        size, window = min(rule.size, _LONGEST), min(rule.window, _LONGEST)
        request.state = NGramIndex(request.history, size, window, whitelist, vocab_size)
