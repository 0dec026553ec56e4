"""Chooses the compiled core or pure Python, once for each process.

The package `logitport_core` has the compiled core, where it could be built. Each part of it has a counterpart in Python
with the same results, which `tests/core` checks. A module with such a part chooses by `core`:

    NGramIndex = PythonNGramIndex if core is None else core.NGramIndex
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument, from_code

logger = logging.getLogger(__name__)

# Number of the interface between this package and the compiled core; the same number is in core/src/module.cpp.
INTERFACE = 17
VARIABLE = "LOGITPORT_PURE_PYTHON"
_PACKAGE = "logitport_core"
_MODULE = f"{_PACKAGE}._core"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Missing(str):
    """Why there is no core, where it could be built."""

    __slots__ = ()


def load() -> tuple[Any, str]:
    """Import the compiled core.

    Returns:
        The module and ""; or None and the reason why pure Python runs, which is `Missing` if a core could run.

    Raises:
        InvalidArgument: the variable LOGITPORT_PURE_PYTHON is neither 0 nor 1.
    """
    if (value := os.environ.get(VARIABLE, "")) not in {"", "0", "1"}:
        raise InvalidArgument(f"{VARIABLE} is {value!r}; set it to 1 for pure Python, or to 0 for the compiled core")
    if value == "1":
        return None, f"{VARIABLE} is 1"
    try:
        module: Any = importlib.import_module(_MODULE)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (_PACKAGE, _MODULE):
            return None, _why_not_built()
        # One that was built for another C++ library, for example.
        return None, Missing(f"the compiled core cannot be loaded ({error})")
    found = getattr(module, "INTERFACE", None)
    if found != INTERFACE:
        return None, Missing(f"the compiled core has interface {found}, and this logitport needs {INTERFACE}")
    module.set_error_factory(from_code)
    return module, ""


def _why_not_built() -> str:
    """The reason that the build wrote (core/build_hook.py). There is none in a clone that is installed as editable."""
    if not sys.platform.startswith("linux"):
        return f"the compiled core is for Linux, and this is {sys.platform}"
    for folder in getattr(sys.modules.get(_PACKAGE), "__path__", ()):
        if (reason := Path(folder, "not_built.txt")).exists():
            return Missing(f"there is no compiled core: {reason.read_text().strip()}")
    return Missing(f"there is no compiled core for Python {_PYTHON} on this platform")


if TYPE_CHECKING:
    # The module, or None. Typed as the module alone, so that mypy checks the calls.
    from logitport_core import _core

    core = _core
    REASON = ""
else:
    core, REASON = load()

NAME = "python" if core is None else "compiled"


@cache
def warn_if_missing() -> None:
    """Log that no core runs though one could, once in this process.

    Sessions and servers call it at their start. An import must not log: a program configures its log after its imports.
    """
    if isinstance(REASON, Missing):
        logger.warning(
            "%s. logitport runs in pure Python: a step takes up to 30 times as much CPU time. Install a C++17 compiler "
            "and Python's headers (Debian: g++ python3-dev). Then install logitport again, with pip install --no-deps "
            "--force-reinstall --no-cache-dir --no-binary logitport; in a clone with make: run make core",
            REASON,
        )


def describe() -> str:
    """Describe for a reader which of the two runs, with the reason."""
    return f"compiled, {core.__file__}" if core is not None else f"pure Python: {REASON}"


def environment() -> dict[str, str]:
    """Return the variable that lets a child process with an environment of its own choose as this process has."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
