"""`logitport check` on files of processors."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from logitport_server.cli.root import run

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


class Result(NamedTuple):
    status: int
    output: str
    errors: str


@pytest.fixture
def check(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Runs the command on FILE, or on another text."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds to it

    def call(name: str, *options: str, text: str = FILE) -> Result:
        module = re.sub(r"\W", "_", request.node.name) + str(len(sys.modules))  # a file is imported as a module
        file = tmp_path / f"{module}.py"
        file.write_text(text)
        try:
            with pytest.raises(SystemExit) as ended:
                run(["check", f"{file}{name}", *options])
        finally:
            sys.modules.pop(module, None)
        printed = capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 1, printed.out, printed.err)

    return call


FAST = ("--law", "deterministic", "--max-examples", "5")


def test_a_correct_processor(check: Any) -> None:
    assert check(":Bans", *FAST) == (0, "Bans keeps the laws deterministic\n", "")


def test_a_broken_law(check: Any) -> None:
    result = check(":Shakes", *FAST)
    assert result.status == 1
    assert "Shakes breaks the law 'deterministic'" in result.output
    assert re.search(r"suspect: .*\.py:12: `edits.bias\(\[1\], random.random\(\)\)`", result.output)


def test_a_line_without_an_effect(check: Any) -> None:
    result = check(":Halves", *FAST)
    assert result.status == 1
    assert re.search(r"^warning: .*\.py:17: `row = row / 2`: the new value of 'row' is never used", result.errors)


def test_all_processors_of_a_file(check: Any) -> None:
    result = check("", "--law", "nan", "--max-examples", "3")
    assert [line.split()[0] for line in result.output.splitlines()] == ["Bans", "Shakes", "Halves"]


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
    assert message in result.errors


def test_a_file_without_processors(check: Any) -> None:
    result = check("", text="x = 1")
    assert result.status == 2
    assert "defines no processor" in result.errors
