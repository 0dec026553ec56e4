"""A few seconds of each fuzzing target: valid messages, random mutations of them, and earlier findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport.programs.program import Program
from logitport.programs.verifier import verify
from tests.fuzz import seeds
from tests.fuzz.targets import TARGETS
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

FINDINGS = Path(__file__).with_name("findings")
CORPORA = seeds.corpora()
EXAMPLES = 3 * settings().max_examples

PLACE = st.integers(0, 1 << 16)
CHANGE = st.one_of(
    st.tuples(st.just("set"), PLACE, st.integers(0, 255)),
    st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("insert"), PLACE, st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("cut"), PLACE, st.integers(1, 64)),
    st.tuples(st.just("repeat"), PLACE, st.integers(1, 64)),
    st.tuples(st.just("number"), PLACE, st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63, 2**64 - 1])),
)


def changed(original: bytes, changes: list[tuple[str, int, object]]) -> bytes:
    """Return the bytes after these changes. Each place is taken modulo their length."""
    data = bytearray(original)
    for kind, place, by in changes:
        at = place % (len(data) + 1)
        if isinstance(by, bytes):
            data[at:at] = by
            continue
        assert isinstance(by, int)
        if kind == "cut":
            del data[at : at + by]
        elif kind == "repeat":
            data[at:at] = data[at : at + by]
        elif kind == "number":
            width = 4 if -(2**31) <= by < 2**32 else 8
            data[at : at + width] = (by % (1 << 8 * width)).to_bytes(width, "little")
        elif at < len(data):
            data[at] = by if kind == "set" else data[at] ^ 1 << by
    return bytes(data)


def test_each_target_has_seeds() -> None:
    assert CORPORA.keys() == TARGETS.keys()
    assert all(len(corpus) > 3 for corpus in CORPORA.values())


def test_the_programs_run() -> None:
    """The target would accept programs, too, of which all are refused."""
    for data in CORPORA["program"]:
        verify(Program.from_bytes(data)).check_width(24)


@pytest.mark.parametrize("seed", range(examples(600)))
def test_drawn_programs(seed: int) -> None:
    """Random bytes draw larger programs, and more different requests, than Hypothesis does by itself."""
    TARGETS["drawn_program"](np.random.default_rng([seed]).bytes(4000))


@pytest.mark.parametrize("name", TARGETS)
def test_valid_messages(name: str) -> None:
    for data in CORPORA[name]:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_findings(name: str) -> None:
    for finding in (FINDINGS / name).glob("*"):
        TARGETS[name](finding.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_messages(name: str) -> None:
    fuzzed(TARGETS[name], CORPORA[name])


def fuzzed(target: Callable[[bytes], None], corpus: list[bytes]) -> None:
    @settings(max_examples=EXAMPLES)
    @given(st.sampled_from(corpus), st.lists(CHANGE, min_size=1, max_size=6))
    def once(data: bytes, changes: list[tuple[str, int, object]]) -> None:
        target(changed(data, changes))

    once()


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=200))
def test_random_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)
