"""docs/architecture.md describes the present folders, layers and names."""

from __future__ import annotations

import ast
import re
from xml.etree import ElementTree

import pytest
import tomllib

from tests.docs.pages import ROOT, blocks, read, rows, section

PAGE = read("docs/architecture.md")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


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
    named = [name for row in rows(section(PAGE, title)) for name in re.findall(r"`(\w+)`", row[0])]
    for layer in layers(contract):
        assert set(named[: len(layer)]) == layer
        named = named[len(layer) :]
    assert not named


def test_the_packages_are_in_their_order() -> None:
    (line,) = [line for line in section(PAGE, "Overview").splitlines() if " → " in line]
    named = [set(re.findall(r"`(logitport\w*)` \(`", part)) for part in line.split(" → ")]
    assert named == layers("The packages import in one direction")


def test_the_named_methods_exist_in_the_named_files() -> None:
    named = re.findall(r"`(\w+)\.(\w+)`\s+in\s+`([\w/.]+\.py)`", section(PAGE, "The way of a step"))
    assert len(named) == 6
    for owner, method, path in named:
        classes = [node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.ClassDef)]
        (found,) = [node for node in classes if node.name == owner]
        assert any(isinstance(node, ast.FunctionDef) and node.name == method for node in found.body), method


def test_the_picture_has_the_labels_of_the_diagram() -> None:
    """`python docs/site/diagram.py` draws it."""
    (diagram,) = blocks(PAGE, "mermaid")
    labels = re.findall(r'"([^"]+)"|-- (\w+) -->', diagram)
    named = " ".join(quoted or plain for quoted, plain in labels).replace("<br>", " ")
    tspans = ElementTree.parse(ROOT / "docs/overview.svg").iter("{http://www.w3.org/2000/svg}tspan")
    drawn = " ".join("".join(line.itertext()) for line in tspans if "row" in line.get("class", ""))
    assert sorted(drawn.split()) == sorted(named.split())
