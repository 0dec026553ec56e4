"""The position of one request's output in its grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import ProcessorFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llguidance import LLMatcher

    from logitport_builtins.grammar.compiled_grammar import CompiledGrammar


class GrammarState:
    """Matches the output of one request with its grammar, up to the first id that ends the output or does not match.

    Attributes:
        grammar: the grammar.
        matcher: llguidance's matcher, which has consumed the ids that match.
        eos_token_ids: the ids that end the output where the grammar is complete.
        text_ends: those of them that are no special tokens. The others, a grammar can name before its end.
        matched: how many ids of the output match.
        ended: whether the next id is an end-of-sequence id that the grammar allows there.
        mismatched: whether the next id is one that the grammar does not allow.
    """

    __slots__ = ("_failure", "_ids", "ended", "eos_token_ids", "grammar", "matcher", "mismatched", "text_ends")

    def __init__(self, grammar: CompiledGrammar, eos_token_ids: tuple[int, ...], output: Iterable[int]) -> None:
        self.grammar = grammar
        self.matcher: LLMatcher = grammar.matcher()
        self.eos_token_ids = eos_token_ids
        self.text_ends = [one for one in eos_token_ids if not grammar.tokenizer.is_special(one)]
        self.ended = self.mismatched = False
        self._ids: list[int] = []  # the ids that match
        self._failure = ""
        for token_id in output:
            self.advance(token_id)

    @property
    def matched(self) -> int:
        return len(self._ids)

    def advance(self, token_id: int) -> None:
        """Match an id that was appended to the output."""
        if self.ended or self.mismatched or self._failure:
            return
        if token_id in self.eos_token_ids and self.matcher.is_accepting():
            self.ended = True
        elif token_id not in self.text_ends and self._consume(token_id):
            self._ids.append(token_id)
        else:
            self.mismatched = not self._failure

    def rewind(self, length: int) -> None:
        """Follow an output that was cut back to this length."""
        surplus = len(self._ids) - length
        if surplus < 0:
            return
        self.ended = self.mismatched = False
        if surplus and not self._failure:
            del self._ids[length:]
            if not self.matcher.rollback(surplus):
                self.restart_matcher()

    def restart_matcher(self) -> None:
        """Match the output again, after the matcher has reached a limit that it shares with others of its grammar."""
        self.grammar.recompile()
        self.matcher = self.grammar.matcher()
        self.matcher.consume_tokens(self._ids)

    def fail(self, reason: str = "") -> None:
        """Stop matching for this reason; by default, the matcher's error."""
        self._failure = reason or explain(self.matcher.get_error())

    def check(self) -> None:
        """Raise ProcessorFailed if matching has failed."""
        if self._failure:
            raise ProcessorFailed(f"grammar: after {len(self._ids)} ids of output: {self._failure}")

    def _consume(self, token_id: int) -> bool:
        if token_id >= self.grammar.tokenizer.vocab_size:
            return False
        if self.matcher.try_consume_tokens([token_id]) == 1:
            return True
        if not self._limit_reached():
            return False
        self.restart_matcher()
        if self.matcher.try_consume_tokens([token_id]) == 1:
            return True
        if self._limit_reached():
            self.fail("the grammar exceeds llguidance's limits")
        return False

    def _limit_reached(self) -> bool:
        """Whether the matcher has reached a limit. Consuming an id does not report that; computing a mask does."""
        probe = self.matcher.deep_copy()
        probe.compute_bitmask()
        return bool(probe.is_error())


def explain(error: str) -> str:
    """Make an error message of llguidance readable."""
    text = error.replace("<non-verbose/>", "").strip()
    return "the grammar allows no token here" if text == "NoExtensionBias" else text
