"""`logitport check` on files of processors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

FILE = """
import random
from logitport import CustomLogitProcessor, EditProcessor, Float

class Bans(EditProcessor):
    params = {"by": Float(default=1.0)}
    def edit(self, request, edits):
        edits.bias([1], request.params["by"])

class Shakes(EditProcessor):
    def edit(self, request, edits):
        edits.bias([1], random.random())

class Halves(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        for row in logits:
            row = row / 2
        return logits

def helper(a, b, c, d):
    return a
"""


@pytest.fixture
def check(logitport: Any, tmp_path: Path) -> Any:
    """Runs the command on FILE, or on another text."""

    def call(name: str, *options: str, text: str = FILE) -> Any:
        file = tmp_path / f"{tmp_path.name}.py"  # a file is imported as a module
        file.write_text(text)
        return logitport("check", f"{file}{name}", *options)

    return call


FAST = ("--law", "deterministic", "--max-examples", "5")


def test_a_correct_processor(check: Any) -> None:
    assert check(":Bans", *FAST) == (0, "Bans keeps the laws deterministic\n", "")


def test_a_broken_law(check: Any) -> None:
    result = check(":Shakes", *FAST)
    assert result.status == 1
    assert "Shakes breaks the law 'deterministic'" in result.out
    assert re.search(r"suspect: .*\.py:12: `edits.bias\(\[1\], random.random\(\)\)`", result.out)


def test_a_line_without_an_effect(check: Any) -> None:
    result = check(":Halves", *FAST)
    assert result.status == 1
    assert re.search(r"^warning: .*\.py:17: `row = row / 2`: the new value of 'row' is never used", result.err)


def test_all_processors_of_a_file(check: Any) -> None:
    result = check("", "--law", "nan", "--max-examples", "3")
    assert [line.split()[0] for line in result.out.splitlines()] == ["Bans", "Shakes", "Halves"]


def test_parameters(check: Any) -> None:
    assert check(":Bans", *FAST, "--params", '{"by": 2}', "--params", '{"by": 3}').status == 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (":Bans", ["--params", '{"other": 2}'], "params[0] is refused"),
        (":Bans", ["--params", "{"], "params"),
        (":Bans", ["--params", "3"], "params"),
        (":Bans", ["--law", "moon"], "there is no law 'moon'"),
        (":Moon", [], "has no Moon"),
    ],
)
def test_what_cannot_be_checked(check: Any, name: str, options: list[str], message: str) -> None:
    result = check(name, *options)
    assert result.status == 2
    assert message in result.err


def test_a_file_without_processors(check: Any) -> None:
    result = check("", text="x = 1")
    assert result.status == 2
    assert "defines no processor" in result.err
