"""Classes that travel under another name than the one that Python would find them by.

The module path of a base class stands in every payload, so it is part of the wire format. Ours are written as
SGLang's: what is made here loads in a plain SGLang, and what SGLang made loads here.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

SGLANG_MODULE = "sglang.srt.sampling.custom_logit_processor"

_ClassT = TypeVar("_ClassT", bound=type)
_classes: dict[tuple[str, str], type] = {}
_names: dict[type, tuple[str, str]] = {}


def wire_name(module: str, name: str) -> Callable[[_ClassT], _ClassT]:
    """Decorate a class that travels as the reference `module.name`, and is what that reference loads to."""

    def register(cls: _ClassT) -> _ClassT:
        _classes[module, name] = cls
        _names[cls] = module, name
        return cls

    return register


def name_of(cls: type) -> tuple[str, str] | None:
    """(module, name) under which exactly this class travels; None if it has no such name."""
    _register_base()
    return _names.get(cls)


def class_of(module: str, name: str) -> type | None:
    """The class that a reference loads to; None if it is not one of ours."""
    _register_base()
    found = _classes.get((module, name))
    if found is None and module == SGLANG_MODULE:
        # The built-ins register their names when they are imported. The SDK does not depend on them, nor need they
        # be installed beside it: hence not an import statement.
        try:
            importlib.import_module("logitport_builtins")
        except ModuleNotFoundError:
            return None
        found = _classes.get((module, name))
    return found


def names_in(module: str) -> list[str]:
    """The names of a module that are ours, sorted."""
    return sorted(name for of, name in _classes if of == module)


@functools.cache
def _register_base() -> None:
    # Not at import: the module of the base class imports this package.
    from logitport.processors import CustomLogitProcessor

    wire_name(SGLANG_MODULE, "CustomLogitProcessor")(CustomLogitProcessor)
