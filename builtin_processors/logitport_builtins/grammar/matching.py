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
        eos_token_ids: the ids that end the output where the grammar is complete, int[n].
        matched: how many ids of the output match.
        ended: whether the id after these ends the output, as it may.
        strayed: whether it is one that the grammar does not allow.
    """

    __slots__ = ("_ids", "ended", "eos_token_ids", "grammar", "matched", "matcher", "strayed")

    def __init__(self, grammar: CompiledGrammar, eos_token_ids: tuple[int, ...], output: Iterable[int]) -> None:
        self.grammar = grammar
        self.matcher: LLMatcher = grammar.matcher()
        self.eos_token_ids = eos_token_ids
        self.matched = 0
        self.ended = self.strayed = False
        self._ids: list[int] = []  # those that match
        for token_id in output:
            self.advance(token_id)

    def advance(self, token_id: int) -> None:
        """The output has grown by this id."""
        if self.ended or self.strayed:
            return
        if token_id in self.eos_token_ids:
            self.ended = self.matcher.is_accepting()
            self.strayed = not self.ended
        elif self._consume(token_id):
            self._ids.append(token_id)
            self.matched += 1
        else:
            self.strayed = True

    def rewind(self, length: int) -> None:
        """The output has been cut back to this length."""
        if length > self.matched:
            return
        self.ended = self.strayed = False
        if length < self.matched:
            if not self.matcher.rollback(self.matched - length):
                raise self.failure()
            self.matched = length
            del self._ids[length:]

    def recover(self) -> None:
        """The matcher has met a limit, which others of its grammar may have used up: match the output anew.

        Raises:
            ProcessorFailed: this output uses it up alone.
        """
        self.grammar.begin_anew()
        self.matcher = self.grammar.matcher()
        if not self.matcher.consume_tokens(self._ids):
            raise self.failure()

    def failure(self) -> ProcessorFailed:
        """The matcher's error as ours."""
        reason = self.matcher.get_error().replace("<non-verbose/>", "").strip()
        reason = reason.replace("NoExtensionBias", "no token leads on from here") or "nothing is allowed"
        return ProcessorFailed(f"grammar: after {self.matched} ids of output: {reason}")

    def _consume(self, token_id: int) -> bool:
        if token_id >= self.grammar.tokenizer.vocab_size:
            return False
        if self.matcher.try_consume_tokens([token_id]) == 1:
            return True
        if not self.matcher.is_error():
            return False
        self.recover()
        return bool(self.matcher.try_consume_tokens([token_id]) == 1)
