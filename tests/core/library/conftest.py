"""Builds liblogitport once."""

from __future__ import annotations

import importlib.util
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.core.library.c_session import CORE, build, load

if TYPE_CHECKING:
    import ctypes
    from pathlib import Path


def _skip_without_compiler() -> None:
    if importlib.util.find_spec("cmake") is None or not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("liblogitport needs cmake and a C++ compiler; `make core` installs cmake")


@pytest.fixture(scope="session")
def build_folder() -> Path:
    """Folder with the library."""
    _skip_without_compiler()
    return build(CORE / "build" / "library")


@pytest.fixture(scope="session")
def library(build_folder: Path) -> ctypes.CDLL:
    """The library."""
    return load(build_folder)
