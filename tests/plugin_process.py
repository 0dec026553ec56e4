"""Runs a program in a process that finds an installed package with a plugin."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def run_beside_plugin(
    folder: Path, plugin: str, program: str, *, module: str = "a_plugin", entry_point: str = "fast"
) -> subprocess.CompletedProcess[str]:
    """Install `plugin` as a module with an entry point in `folder`, and run `program` with `folder` on its path."""
    (folder / f"{module}.py").write_text(plugin)
    metadata = folder / f"{module}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[logitport.plugins]\n{entry_point} = {module}\n")
    code = f"import sys; sys.path = [*{sys.path!r}, {str(folder)!r}]\n{program}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200)
