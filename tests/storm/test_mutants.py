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


@pytest.mark.parametrize(("fails", "killed"), [("tests/near.py", "tests"), ("tests", "tests"), ("", "")])
def test_tests_kill_it(fails: str, killed: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def passes(module: list[str], _: float) -> bool:
        assert tree.read_text() == "if not True: pass"
        return fails not in module

    monkeypatch.setattr(mutants, "_passes", passes)
    assert mutants.tested(MUTANT)["killed"] == killed
    assert tree.read_text() == "if True: pass"


@pytest.mark.parametrize(
    ("with_mutant", "without", "killed"), [("7", "", "storm"), ("10", "7", "storm"), ("7", "7", ""), ("11", "", "")]
)
def test_a_piece_of_the_storm_kills_it(
    with_mutant: str, without: str, killed: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def findings(options: list[str], _: float) -> list[str]:
        is_planted = tree.read_text() == "if not True: pass"
        return ["FOUND"] if (with_mutant if is_planted else without) in options else []

    monkeypatch.setattr(mutants, "_findings", findings)
    assert mutants.stormed(MUTANT, 1.0, 7)["killed"] == killed
    assert tree.read_text() == "if True: pass"


def _lines(results: Path) -> list[tuple[int, str]]:
    return [(line["line"], line["killed"]) for line in map(json.loads, results.read_text().splitlines())]


def test_both_commands_go_on_after_the_last_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [replace(MUTANT, line=line) for line in range(5)]
    killed = iter(["tests", "", "tests", "", ""])
    monkeypatch.setattr(mutants, "tested", lambda _: {"killed": next(killed), "by": []})
    results = tmp_path / "results"
    mutants.test_all(drawn, results, 1)
    assert _lines(results) == [(0, "tests"), (1, "")]
    mutants.test_all(drawn, results, 3)
    mutants.test_all(drawn, results, 3)
    assert _lines(results) == [(0, "tests"), (1, ""), (2, "tests"), (3, ""), (4, "")]
    with pytest.raises(ValueError, match="another mutant"):
        mutants.test_all(drawn[1:], results, 4)

    read = [json.loads(line) for line in results.read_text().splitlines()]
    read[3]["unseen"] = "a reason"
    results.write_text("".join(json.dumps(line) + "\n" for line in read))
    found = iter([{"killed": "storm"}, {"killed": "", "stormed": 1.0}])
    monkeypatch.setattr(mutants, "stormed", lambda *_: next(found))
    mutants.storm_all(results, 1.0, 7)
    mutants.storm_all(results, 1.0, 7)
    assert _lines(results) == [(0, "tests"), (1, "storm"), (2, "tests"), (3, ""), (4, "")]


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
