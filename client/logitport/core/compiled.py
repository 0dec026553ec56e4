"""Chooses the compiled core or pure Python, once for each process.

The distribution `logitport-core` has the compiled core. Each part of it has a counterpart in Python with the same
results, which `tests/core` checks. A module with such a part chooses by `core`:

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
INTERFACE = 14
VARIABLE = "LOGITPORT_PURE_PYTHON"
_PACKAGE = "logitport_core"
_MODULE = f"{_PACKAGE}._core"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Unfit(str):
    """What is wrong with the core that is installed."""

    __slots__ = ()


def load() -> tuple[Any, str]:
    """Import the compiled core.

    Returns:
        The module and ""; or None and the reason why pure Python runs, which is `Unfit` if a core is installed.

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
        package = getattr(sys.modules.get(_PACKAGE), "__file__", None)
        if package is None:
            return None, "logitport-core is not installed"
        if isinstance(error, ModuleNotFoundError) and error.name == _MODULE:
            return None, Unfit(f"{Path(package).parent} has no module for Python {_PYTHON} on this platform")
        return None, Unfit(f"logitport-core cannot be imported ({error})")  # one for another C++ library, for example
    found = getattr(module, "INTERFACE", None)
    if found != INTERFACE:
        return None, Unfit(f"logitport-core has interface {found}, and this logitport needs {INTERFACE}")
    module.set_error_factory(from_code)
    return module, ""


if TYPE_CHECKING:
    # The module, or None. Typed as the module alone, so that mypy checks the calls.
    from logitport_core import _core

    core = _core
    REASON = ""
else:
    core, REASON = load()

NAME = "python" if core is None else "compiled"


@cache
def warn_if_unfit() -> None:
    """Log that a core is installed that cannot run, once in this process.

    Sessions and servers call it at their start. An import must not log: a program configures its log after its imports.
    """
    if isinstance(REASON, Unfit):
        advice = "Install the logitport-core of this version; in a clone: make core, or pip install ./core."
        logger.warning("%s; logitport runs in pure Python. %s", REASON, advice)


def describe() -> str:
    """Describe for a reader which of the two runs, with the reason."""
    return f"compiled, {core.__file__}" if core is not None else f"pure Python: {REASON}"


def environment() -> dict[str, str]:
    """Return the variable that lets a child process with an environment of its own choose as this process has."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
