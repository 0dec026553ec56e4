"""Mutants of code that two trees share."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.storm import near_tests, shared_mutants
from tests.storm.mutants import mutated

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "client/logitport/limits.py"
SHARED = '''
def is_low(number: {type}) -> bool:
    """{text}"""
    return number < 10
'''
TEST = "from {package} import {module}\n\ndef test_it() -> None:\n    {body}\n"


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose module has a function of the earlier tree, and a new one."""
    root = tmp_path / "later"
    write(root / MODULE, SHARED.format(type="int", text="Whether it is low.") + "\n\ndef new(x): return x + 1\n")
    (root / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    monkeypatch.setattr(shared_mutants, "ROOT", root)
    monkeypatch.setattr(shared_mutants, "TOPICS", {"limits": (["client/logitport/*.py"], ["client"])})
    return root


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    root = tmp_path / "earlier"
    write(root / "client/logitport/bounds.py", "import os\n" + SHARED.format(type="float", text="Small?"))
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_test(root: Path, name: str, module: str, body: str) -> str:
    path = root / "tests" / name
    write(path, TEST.format(package="logitport", module=module, body=body))
    subprocess.run(["git", "add", path], cwd=root, check=True)
    return f"tests/{name}"


def test_the_same_change_is_drawn_in_both_trees(later: Path, earlier: Path) -> None:
    pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed")
    drawn = shared_mutants.draw(earlier, 7, 3)
    assert drawn == shared_mutants.draw(earlier, 7, 3)
    assert drawn
    for mutant in drawn:
        assert mutant.function == "is_low"
        lines = [
            mutated((root / place.path).read_text(), mutant.operator, place.occurrence).splitlines()[place.line - 1]
            for root, place in ((later, mutant.after), (earlier, mutant.before))
        ]
        assert [line.strip() for line in lines] == [mutant.becomes] * 2


def test_the_tests_that_mirror_and_import_a_module_are_run_first(later: Path) -> None:
    elsewhere = write_test(later, "server/test_a.py", "limits", "pass")
    beside = write_test(later, "client/test_a.py", "other", "pass")
    near = write_test(later, "client/test_b.py", "limits", "pass")
    write_test(later, "server/test_other.py", "other", "pass")
    assert near_tests.near(later, MODULE, ["client"]) == [near, beside, elsewhere]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "seconds", "killed", "by"),
    [
        ("pass", 300, False, ""),
        ("assert False", 300, True, "tests/client/test_b.py::test_it"),
        ("while True: pass", 1, True, "limit of time"),
    ],
)
def test_what_tests_make_of_a_file(body: str, seconds: float, killed: bool, by: str, later: Path) -> None:
    test = later / write_test(later, "client/test_b.py", "limits", body)
    test.write_text(test.read_text().partition("\n")[2])
    outcome = near_tests.outcome(later, ["tests/client/test_b.py"], seconds, [])
    assert (outcome.killed, outcome.by) == (killed, by)
    assert outcome.cpu_seconds > 0
