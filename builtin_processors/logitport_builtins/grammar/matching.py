"""Where one request stands in its grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import ProcessorFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llguidance import LLMatcher

    from logitport_builtins.grammar.compiled import CompiledGrammar


class Matching:
    """Follows the output of one request. Its ids match the grammar up to a point, and there it is held.

    Attributes:
        grammar: what is matched.
        matcher: the library's, which has consumed the ids up to that point.
        eos_token_ids: the ids that end the output where the grammar is complete.
        matched: how many ids of the output match.
        ended: whether the id after these ends the output, as it may.
        strayed: whether it is one that the grammar does not allow.
    """

    __slots__ = ("_failure", "_ids", "ended", "eos_token_ids", "grammar", "matcher", "strayed")

    def __init__(self, grammar: CompiledGrammar, eos_token_ids: tuple[int, ...], output: Iterable[int]) -> None:
        self.grammar = grammar
        self.matcher: LLMatcher = grammar.matcher()
        self.eos_token_ids = eos_token_ids
        self.ended = self.strayed = False
        self._ids: list[int] = []  # those that match
        self._failure = ""
        for token_id in output:
            self.advance(token_id)

    @property
    def matched(self) -> int:
        return len(self._ids)

    def advance(self, token_id: int) -> None:
        """The output has grown by this id."""
        if self.ended or self.strayed or self._failure:
            return
        if token_id in self.eos_token_ids:
            self.ended = self.matcher.is_accepting()
            self.strayed = not self.ended
        elif self._consume(token_id):
            self._ids.append(token_id)
        else:
            self.strayed = not self._failure

    def rewind(self, length: int) -> None:
        """The output has been cut back to this length."""
        surplus = len(self._ids) - length
        if surplus < 0:
            return
        self.ended = self.strayed = False
        if surplus and not self._failure:
            del self._ids[length:]
            if not self.matcher.rollback(surplus):
                self.recover()

    def recover(self) -> None:
        """The matcher has met a limit, which others of its grammar may have used up: match the output anew."""
        self.grammar.begin_anew()
        self.matcher = self.grammar.matcher()
        self.matcher.consume_tokens(self._ids)

    def give_up(self, reason: str = "") -> None:
        """The grammar cannot be followed any further, for this reason, or for the matcher's."""
        self._failure = reason or explain(self.matcher.get_error())

    def check(self) -> None:
        """Raises ProcessorFailed if the grammar was given up."""
        if self._failure:
            raise ProcessorFailed(f"grammar: after {len(self._ids)} ids of output: {self._failure}")

    def _consume(self, token_id: int) -> bool:
        if token_id >= self.grammar.tokenizer.vocab_size:
            return False
        if self.matcher.try_consume_tokens([token_id]) == 1:
            return True
        if not self._met_a_limit():
            return False
        self.recover()
        if self.matcher.try_consume_tokens([token_id]) == 1:
            return True
        if self._met_a_limit():
            self.give_up("it needs more than the library's limits allow")
        return False

    def _met_a_limit(self) -> bool:
        """Whether the matcher can say no more, which it does not tell when it is given an id."""
        probe = self.matcher.deep_copy()
        probe.compute_bitmask()
        return bool(probe.is_error())


def explain(error: str) -> str:
    """What llguidance says, for people."""
    text = error.replace("<non-verbose/>", "").strip()
    return "no token leads on from here" if text == "NoExtensionBias" else text
