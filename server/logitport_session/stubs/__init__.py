"""Stubs of engines' packages, for processors that import from engines that are not installed.

Each folder is the stub of an engine's package. It has modules with the engine's names and exactly the names that a
processor may use. The folder comes last on the import path, so an installed engine takes precedence. Workers use stubs,
and so do `logitport play` and `logitport replay`: a server that imports an engine gets the real one, or an ImportError.
"""

from __future__ import annotations

import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
# Names of the packages that have a stub.
ENGINES = frozenset(path.parent.name for path in _FOLDER.glob("*/__init__.py"))


def offer() -> None:
    """Add the stubs to the import path of this process."""
    folder = str(_FOLDER)
    if folder not in sys.path:
        sys.path.append(folder)


def are_in(file: str) -> bool:
    """Whether this file belongs to a stub."""
    return Path(file).is_relative_to(_FOLDER)
