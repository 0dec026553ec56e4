"""Classes that are pickled under another module path than their own.

The module path of a base class is part of every payload, so it is wire format. logitport's base class is written under
SGLang's path: a plain SGLang loads payloads that logitport makes, and logitport loads payloads that SGLang makes. Other
names are written as the public module that exports them, because internal modules move.
"""

from __future__ import annotations

import functools
import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

SGLANG_MODULE = "sglang.srt.sampling.custom_logit_processor"
# Each entry point names a wire module, and refers to the Python module that registers classes under it.
# The SDK finds the built-ins by it: it does not import them by name, and they need not be installed.
ENTRY_POINTS = "logitport.wire_names"
# The name that the package of programs had. Payloads have it, and its modules if a plain dill made them.
_OLD_PROGRAMS, _PROGRAMS = "logitport.programs", "logitport_programs"

_ClassT = TypeVar("_ClassT", bound=type)
_classes: dict[tuple[str, str], type] = {}
_names: dict[type, tuple[str, str]] = {}


def wire_name(module: str, name: str) -> Callable[[_ClassT], _ClassT]:
    """Decorate a class that is pickled as the reference `module.name`; that reference then loads the class."""

    def register(cls: _ClassT) -> _ClassT:
        _classes[module, name] = cls
        _names[cls] = module, name
        return cls

    return register


def name_of(cls: type) -> tuple[str, str] | None:
    """(module, name) under which exactly this class is pickled; None if it has no wire name."""
    return _names.get(cls)


def class_of(module: str, name: str) -> type | None:
    """The class that a reference loads; None if no class has this wire name."""
    found = _classes.get((module, name))
    if found is None and module == SGLANG_MODULE:
        importlib.import_module("logitport.processors")  # registers the base class
        load_entry_points()
        found = _classes.get((module, name))
    return found


def names_in(module: str) -> list[str]:
    """The wire names of a module, sorted."""
    return sorted(name for of, name in _classes if of == module)


def public_modules(module: str) -> tuple[str, ...]:
    """The modules that may export a name which one of logitport's modules defines; () for another module."""
    package, *rest = module.split(".")
    if package == _PROGRAMS:
        return "logitport", _PROGRAMS
    if package in ("logitport_recording", "logitport_testing"):
        return (package,)
    if package in ("logitport", "logitport_builtins"):
        return package, ".".join((package, *rest[:1])), f"{package}.edits"
    return ()


def present_module(module: str, name: str) -> str:
    """The module that has a name which was written with this module; the module itself unless the name has moved."""
    if not _was_of_programs(module):
        return module
    present = _PROGRAMS + module.removeprefix(_OLD_PROGRAMS)
    exporting = (public for public in public_modules(present) if name in importlib.import_module(public).__all__)
    return next(exporting, present)


def import_module(name: str, package: str | None = None) -> ModuleType:
    """`importlib.import_module` for payloads: also by the name that the package of programs had."""
    present = _PROGRAMS + name.removeprefix(_OLD_PROGRAMS) if _was_of_programs(name) else name
    return importlib.import_module(present, package)


def _was_of_programs(module: str) -> bool:
    return module == _OLD_PROGRAMS or module.startswith(f"{_OLD_PROGRAMS}.")


@functools.cache
def load_entry_points() -> None:
    """Import every installed module that registers wire names."""
    for point in entry_points(group=ENTRY_POINTS):
        point.load()
