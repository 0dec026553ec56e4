"""Grammars compiled for a tokenizer, kept for the requests that share them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from logitport.errors import InvalidParams
from logitport_builtins.grammar.trial import PARSER_LIMITS, definition

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from logitport_builtins.grammar.request_spec import GrammarSpec
    from logitport_builtins.grammar.tokenizers import Tokenizer

_MAX_COMPILED = 64  # of 20 MB at most


class CompiledGrammar:
    """One grammar for one tokenizer.

    Matchers of it share what they find out about the grammar, which so grows up to a limit; then it is begun anew.

    Attributes:
        tokenizer: the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, definition: str) -> None:
        self.tokenizer = tokenizer
        self._definition = definition
        self._untouched = self._compile()

    def matcher(self) -> LLMatcher:
        """At the beginning of the grammar; takes microseconds."""
        return self._untouched.deep_copy()

    def begin_anew(self) -> None:
        """Forget what matchers have found out; those that are there keep theirs. Raises InvalidParams."""
        self._untouched = self._compile()

    def _compile(self) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(**PARSER_LIMITS, verbose_errors=False)
        matcher = LLMatcher(self.tokenizer.trie, self._definition, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidParams(f"grammar: with tokenizer {self.tokenizer.name!r}: {matcher.get_error()}")
        return matcher


@lru_cache(maxsize=_MAX_COMPILED)
def compiled(spec: GrammarSpec, tokenizer: Tokenizer) -> CompiledGrammar:
    """The grammar for this tokenizer. Raises InvalidParams, LimitExceeded."""
    return CompiledGrammar(tokenizer, definition(spec))
