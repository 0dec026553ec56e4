"""`check` finds each planted defect, by the law that it breaks; also with another seed."""

from __future__ import annotations

import pytest

from logitport_testing import LAWS, LawBroken, check
from tests.testing.laws.correct import CORRECT
from tests.testing.laws.defects import DEFECTS, Defect


def test_each_law_is_broken_by_a_defect() -> None:
    assert {defect.law for defect in DEFECTS} == {*LAWS}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.processor.__name__)
def test_it_finds_the_planted_defect(defect: Defect, seed: int) -> None:
    with pytest.raises(LawBroken) as raised:
        check(defect.processor, [defect.params], seed=seed)
    assert raised.value.law == defect.law
    assert defect.message in str(raised.value)
    assert defect.processor.__name__ in str(raised.value)


@pytest.mark.parametrize("kind", CORRECT)
def test_workers_agree_about_correct_processors(kind: str) -> None:
    correct = CORRECT[kind]
    check(correct.processor, [correct.params], laws=["worker"])
