"""What processors import of engines, where the engines are not installed.

Each folder in here stands for an engine's package, and has its modules under their names, with exactly what a processor
may touch. They are found last of all, so that an engine which is installed is used itself; and in workers alone: a
server that imports an engine gets the real one, or none.
"""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
# What is here, by package.
ENGINES = frozenset(path.parent.name for path in _FOLDER.glob("*/__init__.py"))


def offer() -> None:
    """Let imports of this process find them."""
    folder = str(_FOLDER)
    if folder not in sys.path:
        sys.path.append(folder)


def are_in(file: str) -> bool:
    """Whether what an import finds at this path stands for an engine."""
    return Path(file).is_relative_to(_FOLDER)
