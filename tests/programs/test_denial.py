"""A program of which it is derived that it only denies ids changes no logit but to -inf."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core.history import History
from logitport_builtins.programs import BUILTIN_PROGRAMS
from logitport_programs import capture, reference, verify
from logitport_programs.types import Size
from tests.programs import samplers
from tests.programs.runtime.build import Writer, temperature, top_k

if TYPE_CHECKING:
    from logitport import TensorProcessor
    from logitport_programs.verifier import Verified

WIDTH = 5
INF = float("inf")
NUMBERS = st.sampled_from([-INF, -2.0, 0.0, 0.5, 1.0, 3.0, INF, float("nan")])


def test_the_builtin_programs() -> None:
    derived = {name for name, program in BUILTIN_PROGRAMS.items() if verify(program).only_denies}
    assert derived == {"epsilon", "eta", "min_p", "top_k", "top_p", "typical_p"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [samplers.MinP, samplers.TopPFromBelow, samplers.TopPFromAbove, samplers.TopKConstant, samplers.Eta],
)
def test_captured_samplers(sampler: type[TensorProcessor]) -> None:
    assert verify(capture(sampler)).only_denies


def test_a_program_that_scales() -> None:
    assert not temperature().only_denies


def test_ids_that_are_scattered_to_their_own_positions() -> None:
    assert top_k().only_denies


def test_a_sort_of_some_logits_leaves_others_as_they_were() -> None:
    write = Writer()
    logits = write("logits")
    order = write("argsort", write("slice", logits, axis=1, begin=Size(), end=Size(constant=2)))
    shifted = write("add", logits, write.full(1.0))
    write("scatter_drop", shifted, order, write("gather_or", logits, order))
    assert not write.verified().only_denies


class _Tree:
    """Draws the values of a program as a tree."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw, self._write = draw, Writer()
        self._sorts_all = draw(st.booleans())
        self._order: int | None = None
        self._best: int | None = None

    def verified(self) -> Verified:
        mask = self._write("less", self._write("logits"), self._write.full(1.0))
        self._write("where", mask, self._row(2), self._row(2))
        return self._write.verified()

    def _row(self, depth: int) -> int:
        write, draw = self._write, self._draw
        branches = ["where", "denied", "moved", "moved", "shifted"] if depth else []
        match draw(st.sampled_from(["logits", "logits", "full", *branches])):
            case "logits":
                return write("logits")
            case "full":
                number = draw(st.sampled_from([-INF, -INF, 0.0]))
                return write("expand", write.full(number), shape=(Size(vocab=1),))
            case "where":
                mask = write("less", self._row(0), write.full(1.0))
                return write("where", mask, self._row(depth - 1), self._row(depth - 1))
            case "denied":
                return write("scatter_drop", self._row(depth - 1), self._positions(), write.full(-INF))
            case "shifted":
                return write("add", self._row(depth - 1), write.full(draw(st.sampled_from([0.0, 1.0]))))
        positions = self._positions()
        taken = write("gather_or", self._row(depth - 1), positions, number=7.0)
        if draw(st.booleans()):
            taken = write("where", write("less", taken, write.full(1.0)), taken, write.full(-INF))
        to = positions if self._sorts_all or draw(st.booleans()) else self._positions()
        return write("scatter_drop", self._row(depth - 1), to, taken)

    def _positions(self) -> int:
        """Two positions, or all: a program may sort once."""
        write = self._write
        if self._draw(st.booleans()):
            if self._best is None:
                self._best = write("top_k", write("logits"), integer=2)
            return self._best
        if self._order is None:
            source = write("logits")
            if not self._sorts_all:
                source = write("slice", source, axis=1, begin=Size(), end=Size(constant=2))
            self._order = write("argsort", source)
        return self._order


@st.composite
def _programs(draw: st.DrawFn) -> Verified:
    return _Tree(draw).verified()


@given(_programs(), st.lists(NUMBERS, min_size=2 * WIDTH, max_size=2 * WIDTH))
def test_the_claim_holds_for_any_logits(verified: Verified, numbers: list[float]) -> None:
    if not verified.only_denies:
        return
    logits = np.array(numbers, np.float32).reshape(2, WIDTH)
    result = reference.run(verified, logits, {}, [History(), History()])
    assert np.all((result == -INF) | (result == logits) | (np.isnan(result) & np.isnan(logits)))
