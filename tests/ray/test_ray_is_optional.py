"""Engines and servers never import Ray: only `logitport ray` does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "server" / "logitport_fleet"


@pytest.mark.slow
def test_an_engine_and_a_server_import_no_ray() -> None:
    code = (
        "import sys, logitport, logitport_builtins, logitport_server.server, logitport_server.cli.serve\n"
        "import logitport.integrations.common.environment, logitport.servers.targets\n"
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=200).returncode == 0


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
