"""Derives from the operators of a program that it only denies ids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_programs.program import Program, Value
    from logitport_programs.types import Type

# Their result has the elements of their input, if these are all the same.
_RESHAPED = frozenset({"cast", "expand", "unsqueeze", "squeeze"})


def only_denies(program: Program, types: Sequence[Type]) -> bool:
    """Return whether each element of a verified program's result is the logit of the same id, or -inf.

    False also for a program that only denies, if that does not follow from its operators: it adds masks of 0 and -inf,
    for example, which changes a logit of inf to NaN.
    """
    kinds = _Kinds(program.values, types)
    return len(types) - 1 in kinds.kept | kinds.denied


class _Kinds:
    """The values with elements that are known.

    Attributes:
        denied: with no element but -inf.
        kept: each element is the logit of the same id, or -inf.
        gathered: each element is the logit of the id at the same position of another value, or -inf: that value, by
            the value with the logits.
    """

    def __init__(self, values: Sequence[Value], types: Sequence[Type]) -> None:
        self._values, self._types = values, types
        self.denied: set[int] = set()
        self.kept: set[int] = set()
        self.gathered: dict[int, int] = {}
        for index, value in enumerate(self._values):
            self._add(index, value)

    def _add(self, index: int, value: Value) -> None:
        inputs = value.inputs
        if value.operator == "logits":
            self.kept.add(index)
        elif self._is_denied(value):
            self.denied.add(index)
        elif value.operator == "gather_or" and inputs[0] in self.kept:
            self.gathered[index] = inputs[1]
        elif value.operator == "where":
            self._add_choice(index, inputs[1:])
        elif value.operator == "scatter_drop" and self._keeps(*inputs):
            self.kept.add(index)

    def _is_denied(self, value: Value) -> bool:
        if value.operator == "full":
            return value.number == -math.inf
        return value.operator in _RESHAPED and value.inputs[0] in self.denied

    def _add_choice(self, index: int, choices: tuple[int, ...]) -> None:
        others = set(choices) - self.denied
        if not others:
            self.denied.add(index)
        elif others <= self.kept:
            self.kept.add(index)
        elif others <= self.gathered.keys() and len({self.gathered[other] for other in others}) == 1:
            self.gathered[index] = self.gathered[others.pop()]

    def _keeps(self, replaced: int, positions: int, new: int) -> bool:
        """Return whether elements at these positions are replaced so that the result is `kept`."""
        if new not in self.denied and self.gathered.get(new) != positions:
            return False
        return replaced in self.kept | self.denied or (new in self.gathered and self._has_each(positions, replaced))

    def _has_each(self, positions: int, replaced: int) -> bool:
        """Return whether these are all positions of another value: a sort of as many elements has each one once."""
        of_same_size = self._types[positions].shape == self._types[replaced].shape
        return self._values[positions].operator == "argsort" and of_same_size
