"""Makes the stubs of engines importable in tests that define processors without an installed engine."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from logitport_session import stubs
from logitport_session.dialects.vllm import objects

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(stubs.__file__).parent


@contextmanager
def importable_stubs() -> Iterator[None]:
    """Make the stubs importable while the context lasts, and unload them afterwards."""
    before = list(sys.path)
    stubs.offer()
    objects.module.cache_clear()
    try:
        yield
    finally:
        sys.path[:] = before
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name.partition(".")[0] in stubs.ENGINES and file is not None and Path(file).is_relative_to(FOLDER):
                del sys.modules[name]
        importlib.invalidate_caches()
        objects.module.cache_clear()
