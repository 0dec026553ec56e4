"""A few seconds of each target of the storm's fuzzer: valid messages, and random changes to them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import settings

from logitport_programs.program import Program
from logitport_programs.verifier import verify
from tests.storm.actors import fuzzer
from tests.storm.fuzzing import seeds
from tests.storm.fuzzing.targets import TARGETS
from tests.tiers import examples

CORPORA = seeds.corpora()
MESSAGES = 5 * settings().max_examples


def test_each_target_has_seeds() -> None:
    assert CORPORA.keys() == TARGETS.keys() == set(fuzzer.TARGETS)
    assert all(len(corpus) > 3 for corpus in CORPORA.values())


def test_the_programs_run() -> None:
    """The target would accept programs, too, of which all are refused."""
    for data in CORPORA["program"]:
        verify(Program.from_bytes(data)).check_width(24)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(examples(600)))
def test_drawn_programs(seed: int) -> None:
    """Random bytes draw larger programs, and more different requests, than Hypothesis does by itself."""
    TARGETS["drawn_program"](np.random.default_rng([seed]).bytes(4000))


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_valid_messages(name: str) -> None:
    for data in CORPORA[name][: examples(50)]:
        TARGETS[name](data)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS.keys() - {"drawn_program"}))
def test_changed_messages(name: str) -> None:
    for number in range(examples(10) if name == "state" else MESSAGES):
        data = fuzzer.message(name, Random(f"{name} {number}"))
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(data.hex()) from error
