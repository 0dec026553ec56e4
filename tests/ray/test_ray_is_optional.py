"""Engines and servers never import Ray: only `logitport ray` does."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "proto/logitport_proto",
    "client/logitport",
    "builtin_processors/logitport_builtins",
    "server/logitport_session",
    "server/logitport_server",
    "server/logitport_fleet",
    "server/logitport_play",
)
IMPORTING = {"server/logitport_fleet/launch.py", "server/logitport_fleet/ray_actors.py"}


@pytest.mark.slow
def test_an_engine_and_a_server_import_no_ray() -> None:
    code = (
        "import sys, logitport, logitport_builtins, logitport_server.server, logitport_server.cli.serve\n"
        "import logitport.integrations.common.environment, logitport.targets\n"
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=200).returncode == 0


def test_no_other_file_imports_ray() -> None:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names.append(node.module or "")
                if any(name.partition(".")[0] == "ray" for name in names):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == IMPORTING
