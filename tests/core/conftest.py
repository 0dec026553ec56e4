"""Runs each test of `implementation` with the Python version and with the compiled core."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import pytest

from logitport.core import compiled
from tests.core.implementations import PYTHON, Implementation, compiled_implementation


def can_build() -> bool:
    """Whether there is a compiler, and the headers of Python."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return headers.exists() and any(map(shutil.which, ("c++", "g++", "clang++")))


def _compiled_or_skip() -> Implementation:
    if (found := compiled_implementation()) is not None:
        return found
    reason = f"the compiled core does not run: {compiled.REASON}"
    if os.environ.get("CI") and os.environ.get(compiled.VARIABLE) != "1" and can_build():
        pytest.fail(f"{reason}, though it can be built here; see core/build/install.log")
    pytest.skip(f"{reason}; run `make test`, which builds it where there is a C++ compiler")


@pytest.fixture(params=["python", "compiled"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """Each of the two implementations in turn."""
    return PYTHON if request.param == "python" else _compiled_or_skip()


@pytest.fixture
def both() -> tuple[Implementation, Implementation]:
    """The Python version and the compiled core, for a test that compares them."""
    return PYTHON, _compiled_or_skip()
