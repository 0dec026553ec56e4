"""Decides what is shipped by value and what by reference, and finds the globals that a function uses."""

from __future__ import annotations

import dis
import sys
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Importable on every server, wherever their files are. Of an engine, at least the names that processors refer to.
_ON_EVERY_SERVER = {
    "__builtin__",
    "logitport",
    "logitport_builtins",
    "logitport_lint",
    "logitport_programs",
    "logitport_proto",
    "logitport_recording",
    "logitport_testing",
    "dill",
    "dynamo",
    "numpy",
    "sglang",
    "torch",
    "transformers",
    "vllm",
}
_INSTALLED = ("site-packages", "dist-packages")


def top_level(module: str) -> str:
    """Return the package or module at the top of a dotted name."""
    return module.partition(".")[0]


def travels_by_value(module: str, own_package: str) -> bool:
    """Whether definitions in `module` are shipped by value, not by name.

    That holds for the shipped class's own top-level package, and for modules that no server can import: `__main__`, a
    notebook, and modules that are neither in the standard library nor in a site-packages folder.
    """
    package = top_level(module)
    if package in _ON_EVERY_SERVER or package in sys.stdlib_module_names:
        return False
    if package == own_package:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not any(folder in file for folder in _INSTALLED)


def find_by_name(module: str, qualname: str) -> object:
    """Return the object that an unpickler would find under that name in this process, or None."""
    found: object = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def globals_used(code: CodeType) -> Iterator[tuple[str, list[str]]]:
    """Yield each use of a global in the code and in nested code: (name, attributes that are looked up on it at once).

    `os.path.join(a)` gives ("os", ["path", "join"]). Names of builtins are included.
    """
    name, attributes = "", []
    for instruction in dis.get_instructions(code):
        operation = instruction.opname
        if operation in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.append(str(instruction.argval))
        elif operation != "EXTENDED_ARG":
            if name:
                yield name, attributes
            uses_global = "GLOBAL" in operation or operation in ("LOAD_NAME", "DELETE_NAME")
            name, attributes = str(instruction.argval) if uses_global else "", []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from globals_used(constant)


def submodules_used(module: ModuleType, attributes: list[str]) -> Iterator[str]:
    """Yield the modules that are reached through attributes of `module`, and that importing it may not import."""
    for attribute in attributes:
        submodule = vars(module).get(attribute)
        if not isinstance(submodule, ModuleType) or sys.modules.get(f"{module.__name__}.{attribute}") is not submodule:
            return
        yield submodule.__name__
        module = submodule
