"""The processor: reads the parameters, finds repetitions, and lowers the logits of the ids that would continue them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport.processors import EditProcessor
from logitport_builtins.dry.repetitions import Repetitions
from logitport_builtins.params import Params, check_in_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from logitport.core.edits import RowEdits
    from logitport.core.history import History
    from logitport.processors import EditRequest

_WHOLE_HISTORY = sys.maxsize
_MAX_NUMBER = 1e6
_LARGEST = float(np.finfo(np.float32).max)
_KEYS = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breaker_ids")


class DryRule(NamedTuple):
    """The parameters of a request.

    Attributes:
        multiplier, base: the penalty is multiplier * base ** (length - allowed_length).
        allowed_length: shorter repetitions have no penalty.
        window: number of last ids that repetitions are sought in.
        breakers: ids that end every repetition.
    """

    multiplier: float
    base: float
    allowed_length: int
    window: int
    breakers: frozenset[int]

    def penalties(self, lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """The penalties of repetitions of these lengths, int64[n], as finite float32[n]."""
        with np.errstate(over="ignore"):
            powers = np.power(self.base, (lengths - self.allowed_length).astype(np.float64))
            return np.minimum(self.multiplier * powers, _LARGEST).astype(np.float32)


class Dry(EditProcessor):
    """Lowers the logit of each id that would continue a repetition: "don't repeat yourself".

    If the last n ids occurred before, the ids that followed there get the penalty multiplier * base ** (n - allowed
    length), for the longest n.

    An edit, because the penalty follows from the history alone.

    Parameters:
        dry_multiplier: a number of at least 0; with 0, nothing is changed.
        dry_base: optional number of at least 1, 1.75 by default.
        dry_allowed_length: optional integer of at least 1, 2 by default: the shortest repetition with a penalty.
        dry_penalty_last_n: optional integer of at least 1: the number of last ids of prompt and output in which
            repetitions count; by default all.
        dry_sequence_breaker_ids: optional list of token ids that end every repetition, such as the ids of newlines,
            colons and quotes.

    The rule is as in llama.cpp's DRY sampler, with two differences. Sequence breakers are ids instead of texts,
    because there is no tokenizer here. A repetition of more than 128 ids counts as one of 128.
    """

    builtin_name = "dry"
    bytes_per_id = 64
    takes_long = True

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument."""
        cls.rule(params)

    @classmethod
    def rule(cls, params: Mapping[str, Any]) -> DryRule:
        """Read the rule from `params`. Raises InvalidArgument."""
        given = Params("dry", params, _KEYS)
        breakers = given.token_ids("dry_sequence_breaker_ids").tolist() if "dry_sequence_breaker_ids" in given else ()
        return DryRule(
            multiplier=given.number("dry_multiplier", 0, _MAX_NUMBER),
            base=given.number("dry_base", 1, _MAX_NUMBER) if "dry_base" in given else 1.75,
            allowed_length=given.integer("dry_allowed_length", 1) if "dry_allowed_length" in given else 2,
            window=given.integer("dry_penalty_last_n", 1) if "dry_penalty_last_n" in given else _WHOLE_HISTORY,
            breakers=frozenset(breakers),
        )

    def start(self, request: EditRequest) -> None:
        """Find the repetitions of the history. Raises InvalidArgument."""
        rule = self.rule(request.params)
        check_in_vocabulary("dry", list(rule.breakers), request.vocab_size)
        request.state = _RepetitionState(rule, request.history)

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Extend the repetitions by one id."""
        request.state.append(request.history, token_id)

    def rewind(self, request: EditRequest) -> None:
        """Go back to the repetitions of a shorter history."""
        request.state.rewind(request.history)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        """BIAS of the ids that would continue a repetition."""
        ids, lengths = request.state.longest(request.history)
        inside = (ids >= 0) & (ids < request.vocab_size)
        edits.bias(ids[inside], -request.state.rule.penalties(lengths[inside]))


class _RepetitionState:
    """The repetitions of a request, and where its sequence breakers are."""

    __slots__ = ("_breakers", "_length", "_repetitions", "rule")

    def __init__(self, rule: DryRule, history: History) -> None:
        self.rule = rule
        self._length = history.length
        self._repetitions = Repetitions(history)
        self._breakers = np.flatnonzero(np.isin(history.token_ids, list(rule.breakers))).tolist()

    def append(self, history: History, token_id: int) -> None:
        self._repetitions.append(history)
        if token_id in self.rule.breakers:
            self._breakers.append(history.length - 1)
        self._length = history.length

    def rewind(self, history: History) -> None:
        self._repetitions.rewind(history, self._length - history.length)
        while self._breakers and self._breakers[-1] >= history.length:
            self._breakers.pop()
        self._length = history.length

    def longest(self, history: History) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As `Repetitions.longest`."""
        if not self.rule.multiplier:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        breaker = self._breakers[-1] if self._breakers else -1
        return self._repetitions.longest(history, self.rule.window, breaker, self.rule.allowed_length)
