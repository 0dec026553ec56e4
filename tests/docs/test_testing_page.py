"""docs/testing.md: its examples run, and print what the page shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from logitport_testing import LAWS, ProcessorRecord
from logitport_testing.laws.processor_laws import LAWS as OF_PROCESSORS
from logitport_testing.runner import RunningServer as Connected
from logitport_testing.server_process import ServerProcess
from tests.docs.pages import blocks, read, rows, section

if TYPE_CHECKING:
    from logitport_testing.runner import RunningServer

PAGE = read("docs/testing.md")
# Classes of this page are pickled: the module must not be one that an installed package has.
GLOBALS = {"__name__": "testing_page"}


def first_cells(title: str) -> list[str]:
    return [row[0] for row in rows(section(PAGE, title))]


def test_the_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    made: dict[str, Any] = dict(GLOBALS)
    (block,) = blocks(section(PAGE, "See what a chain does"))
    exec(block, made)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15
    assert "NeverTwiceInARow" in lines[3]


def test_a_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(section(PAGE, "Processors with a tokenizer"))
    exec(block, dict(GLOBALS))
    assert f'# "{capsys.readouterr().out.rstrip()}"' in block


def test_the_attributes_exist() -> None:
    named = [name for cell in first_cells("See what a chain does") for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) == 10
    assert set(named) <= set(ProcessorRecord.__dataclass_fields__)


@pytest.mark.slow
def test_the_search_for_defects(capsys: pytest.CaptureFixture[str]) -> None:
    made: dict[str, Any] = dict(GLOBALS)
    for block in (*blocks(section(PAGE, "See what a chain does")), *blocks(section(PAGE, "Search for defects"))):
        capsys.readouterr()
        exec(block, made)
    assert capsys.readouterr().out == blocks(section(PAGE, "Search for defects"), "text")[0]


def test_the_laws() -> None:
    assert tuple(re.findall(r"`(\w+)`", "".join(first_cells("Search for defects")))) == LAWS
    page = section(PAGE, "Search for defects").replace("`", "").lower()
    for law in OF_PROCESSORS:
        assert law.statement.rstrip(".").replace("`", "").lower() in page, law.name


@pytest.mark.slow
def test_the_fixture(logitport_server: RunningServer) -> None:
    made: dict[str, Any] = dict(GLOBALS)
    test, options = blocks(section(PAGE, "A real server in pytest"))
    exec(test, made)
    made["test_ids_are_denied"](logitport_server)
    exec(options, made)
    assert "logitport_server_options" in made


def test_what_the_fixture_offers() -> None:
    cells = first_cells("A real server in pytest")
    named = [name for cell in cells for name in re.findall(r"`logitport_server\.(\w+)", cell)]
    assert [name for name in named if name != "log"] == ["target", "stop"]
    assert named[0] in Connected.__annotations__
    assert all(hasattr(ServerProcess, name) for name in named[1:])
