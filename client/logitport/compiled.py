"""Chooses the compiled core or pure Python, once for each process.

The distribution `logitport-core` has the compiled core. Each part of it has a counterpart in Python with the same
results, which `tests/core` checks. A module with such a part chooses by `core`:

    extend_crc = python_extend_crc if core is None else core.extend_crc
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument, from_code

logger = logging.getLogger(__name__)

# Number of the interface between this package and the compiled core; the same number is in core/src/module.cpp.
INTERFACE = 5
VARIABLE = "LOGITPORT_PURE_PYTHON"
_MODULE = "logitport_core._core"


def load() -> tuple[Any, str]:
    """Import the compiled core.

    Returns:
        The module and ""; or None and the reason why pure Python runs.

    Raises:
        InvalidArgument: the variable LOGITPORT_PURE_PYTHON is neither 0 nor 1.
    """
    if (value := os.environ.get(VARIABLE, "")) not in {"", "0", "1"}:
        raise InvalidArgument(f"{VARIABLE} is {value!r}; set it to 1 for pure Python, or to 0 for the compiled core")
    if value == "1":
        return None, f"{VARIABLE} is 1"
    try:
        module: Any = importlib.import_module(_MODULE)
    except ImportError as error:  # one of another Python, or for another C++ library, is found and cannot be loaded
        if isinstance(error, ModuleNotFoundError) and error.name in {"logitport_core", _MODULE}:
            return None, "logitport-core is not installed"
        return _unusable(f"logitport-core cannot be imported ({error})")
    found = getattr(module, "INTERFACE", None)
    if found != INTERFACE:
        return _unusable(f"logitport-core has interface {found}, and this logitport needs {INTERFACE}")
    module.set_error_factory(from_code)
    return module, ""


def _unusable(problem: str) -> tuple[None, str]:
    logger.warning("%s; logitport runs in pure Python. Install the logitport-core of this version.", problem)
    return None, problem


if TYPE_CHECKING:
    # The module, or None. Typed as the module alone, so that mypy checks the calls.
    from logitport_core import _core

    core = _core
    REASON = ""
else:
    core, REASON = load()

NAME = "python" if core is None else "compiled"


def describe() -> str:
    """Describe for a reader which of the two runs, with the reason."""
    return f"compiled, {core.__file__}" if core is not None else f"pure Python: {REASON}"


def environment() -> dict[str, str]:
    """Return the variable that lets a child process with an environment of its own choose as this process has."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
