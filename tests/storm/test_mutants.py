"""What becomes of a mutant."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.storm import mutants, near_tests
from tests.storm.mutants import Mutant

if TYPE_CHECKING:
    from pathlib import Path

MUTANT = Mutant("session", "server/logitport_session/requests/principal_memory.py", 1, "core/AddNot", 0)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one file."""
    file = tmp_path / MUTANT.path
    file.parent.mkdir(parents=True)
    file.write_text("if True: pass")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(Mutant, "text", lambda _: "if not True: pass")
    monkeypatch.setattr(near_tests, "importing", lambda *_: ["tests/near.py"])
    return file


@pytest.mark.parametrize(
    ("fails", "killed"), [("tests/near.py", "tests"), ("tests", "tests"), ("tests.storm", "storm"), ("", "")]
)
def test_what_kills_it(fails: str, killed: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def passes(module: list[str], _: float) -> bool:
        assert tree.read_text() == "if not True: pass"
        return fails not in module

    monkeypatch.setattr(mutants, "_passes", passes)
    assert mutants.run(MUTANT, 1.0, 7)["killed"] == killed
    assert tree.read_text() == "if True: pass"


def test_a_run_goes_on_after_the_last_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [replace(MUTANT, line=line) for line in range(5)]
    killed = iter(["tests", "storm", "tests", ""])
    monkeypatch.setattr(mutants, "run", lambda *_: {"killed": next(killed), "by": []})
    results = tmp_path / "results"
    mutants.run_all(drawn, results, 1, 1.0, 7)
    assert [json.loads(line)["killed"] for line in results.read_text().splitlines()] == ["tests", "storm"]
    mutants.run_all(drawn, results, 2, 1.0, 7)
    mutants.run_all(drawn, results, 2, 1.0, 7)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(line["line"], line["killed"]) for line in lines] == [(0, "tests"), (1, "storm"), (2, "tests"), (3, "")]
    with pytest.raises(ValueError, match="another mutant"):
        mutants.run_all(drawn[1:], results, 3, 1.0, 7)


def test_a_change_of_annotations_alone_is_no_mutant() -> None:
    assert mutants._without_annotations("def f(a: int) -> int: return a") == mutants._without_annotations(
        "def f(a: str) -> None: return a"
    )


def test_the_nearest_tests_import_the_module() -> None:
    assert "tests/server/session/test_principal_memory.py" in near_tests.importing(mutants.ROOT, MUTANT.path)


def test_mutants_are_drawn_from_a_seed() -> None:
    pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed")
    drawn = mutants.draw(5, 5)
    assert drawn == mutants.draw(5, 5)
    assert {one.topic for one in drawn} == set(mutants._MODULES)
    assert all(one.was != one.becomes for one in drawn)
