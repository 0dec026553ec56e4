"""Engines and servers never import Ray: only `logitport ray` does."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "server" / "logitport_fleet"


def test_two_files_import_ray() -> None:
    """Options and the help of commands need none. `make lint` checks that no other package imports it."""
    found = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.append(node.module or "")
            if any(name.partition(".")[0] == "ray" for name in names):
                found.add(path.name)
    assert found == {"launch.py", "ray_actors.py"}
