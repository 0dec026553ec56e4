"""docs/programs-spec.md lists the operators, fields and limits that the verifier has. Its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from logitport import errors
from logitport_programs import program, rules, verifier
from logitport_programs.types import Element
from tests.programs.strategies import APPROXIMATE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "programs-spec.md").read_text()


def section(title: str) -> str:
    return PAGE[PAGE.index(f"## {title}\n") :].partition("\n## ")[0]


def rows_of(title: str) -> list[list[str]]:
    """The table of a section, cell by cell."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names_in(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_each_operator_has_one_row() -> None:
    listed = [name for row in rows_of("Operators") for name in names_in(row[0])]
    assert sorted(listed) == sorted(rules.OPERATORS)


@pytest.mark.parametrize("row", rows_of("Operators"), ids=lambda row: row[0])
def test_the_inputs_and_fields_of_an_operator(row: list[str]) -> None:
    operator = rules.OPERATORS[row[0].strip("`")]
    assert len(row) == 5
    assert row[1] == ("1 or more" if operator.inputs is None else str(operator.inputs))
    assert set(names_in(row[2])) == operator.fields
    assert len(names_in(row[2])) == len(operator.fields)


def test_the_element_types() -> None:
    assert [row[0] for row in rows_of("Types")] == [f"`{element}`" for element in Element]


def test_the_approximate_operators_are_those_of_the_tests() -> None:
    (listed,) = re.findall(r"implementations and devices: (.*?)\.\n", section("Floats"), re.DOTALL)
    assert set(names_in(listed)) == APPROXIMATE


def test_the_limits() -> None:
    assert [int(row[1]) for row in rows_of("Limits")] == [
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
    for row in rows_of("Errors"):
        assert issubclass(getattr(errors, row[0].strip("`")), errors.LogitportError)


def test_the_version() -> None:
    assert f"`logitport ops v{program.OPERATORS_VERSION}`" in PAGE.splitlines()[0]


def test_the_example() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "example", "exec"), {})
