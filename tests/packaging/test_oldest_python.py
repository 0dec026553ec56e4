"""Code that the oldest Python would refuse when it is imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLDEST = (3, 10)


@pytest.mark.parametrize("folder", ["client", "server", "builtin_processors", "proto"])
def test_the_oldest_python_can_import_it(folder: str) -> None:
    """A class with NamedTuple and another base is a TypeError before Python 3.11."""
    for path in (ROOT / folder).rglob("*.py"):
        tree = ast.parse(path.read_text(), path.name, feature_version=OLDEST)
        for node in ast.walk(tree):
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            assert len(bases) < 2 or "NamedTuple" not in bases, f"{path}: {bases}"
