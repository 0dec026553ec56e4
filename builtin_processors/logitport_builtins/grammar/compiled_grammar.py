"""A cache of grammars compiled for a tokenizer, shared by requests."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport_builtins.grammar.trial import MAX_ERROR_LENGTH, PARSER_LIMITS, definition

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from logitport_builtins.grammar.grammar_spec import GrammarSpec
    from logitport_builtins.grammar.grammar_tokenizer import GrammarTokenizer

_MAX_COMPILED = 64  # grammars of at most 20 MB each


class CompiledGrammar:
    """One grammar, compiled for one tokenizer.

    Its matchers share llguidance's lexer states, which grow up to a limit. When a matcher reaches the limit, the
    grammar is compiled again.

    Attributes:
        tokenizer: the tokenizer.
    """

    def __init__(self, tokenizer: GrammarTokenizer, definition: str) -> None:
        self.tokenizer = tokenizer
        self._definition = definition
        self._initial_matcher = self._compile()

    def matcher(self) -> LLMatcher:
        """Create a matcher at the start of the grammar; takes microseconds."""
        return self._initial_matcher.deep_copy()

    def recompile(self) -> None:
        """Discard the shared lexer states; existing matchers keep theirs. Raises InvalidArgument."""
        self._initial_matcher = self._compile()

    def _compile(self) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(**PARSER_LIMITS, verbose_errors=False)
        matcher = LLMatcher(self.tokenizer.trie, self._definition, log_level=0, limits=limits)
        if matcher.is_error():
            error = matcher.get_error()[:MAX_ERROR_LENGTH]
            raise InvalidArgument(f"grammar: with tokenizer {self.tokenizer.name!r}: {error}")
        return matcher


@lru_cache(maxsize=_MAX_COMPILED)
def compiled(spec: GrammarSpec, tokenizer: GrammarTokenizer) -> CompiledGrammar:
    """Return the grammar compiled for this tokenizer. Raises InvalidArgument, LimitExceeded, PayloadError."""
    return CompiledGrammar(tokenizer, definition(spec.with_special_tokens(tokenizer.split)))
