"""docs/architecture.md describes the present folders, layers and names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def section(title: str) -> str:
    return PAGE[PAGE.index(f"## {title}\n") :].partition("\n## ")[0]


def first_cells(title: str) -> list[str]:
    rows = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [row.split("|")[1] for row in rows]


def layers(name: str) -> list[set[str]]:
    (contract,) = [one for one in PYPROJECT["tool"]["importlinter"]["contracts"] if one["name"] == name]
    return [{name.removeprefix("logitport.") for name in re.split(r" [|:] ", layer)} for layer in contract["layers"]]


@pytest.mark.parametrize(
    ("title", "contract"),
    [
        ("Folders of the server", "Layers of the server"),
        ("Folders of a session", "Layers of a session"),
        ("Folders of the SDK", "Layers of the SDK"),
        ("Folders of the author's tools", "Layers of the author's tools"),
        ("Folders of an engine's session", "Layers of an engine's session"),
        ("Folders of programs", "Layers of programs"),
    ],
)
def test_the_folders_are_the_layers_in_their_order(title: str, contract: str) -> None:
    named = [name for cell in first_cells(title) for name in re.findall(r"`(\w+)`", cell)]
    for layer in layers(contract):
        assert set(named[: len(layer)]) == layer
        named = named[len(layer) :]
    assert not named


def test_the_packages_are_in_their_order() -> None:
    (line,) = [line for line in section("Overview").splitlines() if " → " in line]
    named = [set(re.findall(r"`(logitport\w*)` \(`", part)) for part in line.split(" → ")]
    assert named == layers("The packages import in one direction")


def test_the_named_methods_exist_in_the_named_files() -> None:
    named = re.findall(r"`(\w+)\.(\w+)`\s+in\s+`([\w/.]+\.py)`", section("The way of a step"))
    assert len(named) == 5
    for owner, method, path in named:
        classes = [node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.ClassDef)]
        (found,) = [node for node in classes if node.name == owner]
        assert any(isinstance(node, ast.FunctionDef) and node.name == method for node in found.body), method


@pytest.mark.parametrize(
    "part", ["a dialect", "a built-in", "an implementation of `apply_edits`", "a hook", "a transport"]
)
def test_there_is_a_guide_for_each_part(part: str) -> None:
    assert section(f"How to add {part}")


def test_the_glossary_is_short() -> None:
    assert len(first_cells("Glossary")) <= 28
