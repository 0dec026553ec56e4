"""Captures the built-ins that read logits, and writes their programs: `python -m logitport_builtins.programs`."""

from __future__ import annotations

import sys
from pathlib import Path

from logitport_builtins.programs.builtin_programs import CLASSES, SUFFIX
from logitport_programs.capturing import capture


def write(folder: Path) -> list[Path]:
    """Write the program of each class to a folder. Returns the files."""
    files = []
    for name, cls in CLASSES.items():
        file = folder / (name + SUFFIX)
        file.write_bytes(capture(cls).to_bytes())
        files.append(file)
    return files


if __name__ == "__main__":
    for written in write(Path(__file__).parent):
        sys.stdout.write(f"{written}: {written.stat().st_size} bytes\n")
