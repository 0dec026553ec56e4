"""The package imports the standard library alone: each process that it starts imports it first."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import logitport_sandbox


def test_the_package_imports_the_standard_library_alone() -> None:
    imported = set()
    for path in Path(logitport_sandbox.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            imported |= {name.partition(".")[0] for name in names}
    assert imported - sys.stdlib_module_names == {"logitport_sandbox"}
