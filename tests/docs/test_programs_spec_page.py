"""docs/programs-spec.md lists the operators, fields and limits that the verifier has. Its example runs."""

from __future__ import annotations

import re

import pytest

from logitport import errors
from logitport_programs import program, rules, verifier
from logitport_programs.types import Element
from tests.docs.pages import blocks, read, rows, section
from tests.programs.strategies import APPROXIMATE

PAGE = read("docs/programs-spec.md")


def names_in(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_each_operator_has_one_row() -> None:
    listed = [name for row in rows(section(PAGE, "Operators")) for name in names_in(row[0])]
    assert sorted(listed) == sorted(rules.OPERATORS)


@pytest.mark.parametrize("row", rows(section(PAGE, "Operators")), ids=lambda row: row[0])
def test_the_inputs_and_fields_of_an_operator(row: list[str]) -> None:
    operator = rules.OPERATORS[row[0].strip("`")]
    assert len(row) == 5
    assert row[1] == ("1 or more" if operator.inputs is None else str(operator.inputs))
    assert set(names_in(row[2])) == operator.fields
    assert len(names_in(row[2])) == len(operator.fields)


def test_the_element_types() -> None:
    assert [row[0] for row in rows(section(PAGE, "Types"))] == [f"`{element}`" for element in Element]


def test_the_approximate_operators_are_those_of_the_tests() -> None:
    (listed,) = re.findall(r"implementations and devices: (.*?)\.\n", section(PAGE, "Floats"), re.DOTALL)
    assert set(names_in(listed)) == APPROXIMATE


def test_the_limits() -> None:
    assert [int(row[1]) for row in rows(section(PAGE, "Limits"))] == [
        program.MAX_BYTES,
        program.MAX_VALUES,
        program.MAX_PARAMETERS,
        program.MAX_LIST_LENGTH,
        program.MAX_INPUTS,
        verifier.MAX_NAME_LENGTH,
        program.MAX_RANK,
        verifier.MAX_WINDOW,
        verifier.MAX_SORTS,
        rules.MAX_TOP_K,
        verifier.MAX_ROW_ELEMENTS,
    ]


def test_the_errors_exist() -> None:
    for row in rows(section(PAGE, "Errors")):
        assert issubclass(getattr(errors, row[0].strip("`")), errors.LogitportError)


def test_the_version() -> None:
    assert f"`logitport ops v{program.OPERATORS_VERSION}`" in PAGE.splitlines()[0]


def test_the_example() -> None:
    (example,) = blocks(PAGE)
    exec(compile(example, "example", "exec"), {})
