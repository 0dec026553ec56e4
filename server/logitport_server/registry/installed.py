"""Processors that are installed beside the server: the built-ins, and what the operator has it load at start-up.

They are trusted, as the server's own code is: they run in its process, and no flag is needed to call them by name.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from importlib.metadata import entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from logitport.dialects import OF_CLASSES, author_of, missing_methods, recognise
from logitport_builtins import BUILTINS
from logitport_server.config import StartupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import EntryPoint

    from logitport_server.config import ServerConfig

ENTRY_POINTS = "logitport.processors"
VLLM_ENTRY_POINTS = "vllm.logits_processors"


def load(config: ServerConfig, given: Iterable[object] = ()) -> dict[str, Any]:
    """Processors of any dialect by the names by which requests ask for them.

    That is a built-in's name; an entry point's; `module.path:Class` of `--logits-processors`, and of a class or
    function that a program of the operator's hands over itself.

    Args:
        config: what else to load.
        given: processors that are here already.

    Raises:
        StartupError: one cannot be imported, or is no processor, or two have one name.
    """
    found: dict[str, Any] = dict(BUILTINS)
    for name, processor, where in _all(config, given):
        try:
            inner, dialect = recognise(processor)
        except TypeError as error:
            raise StartupError(f"{where}: {error}") from error
        if dialect in OF_CLASSES and not isinstance(inner, type):
            raise StartupError(
                f"{where}: of the dialect {dialect!r} a class is wanted, not a {type(inner).__qualname__}"
            )
        if missing := missing_methods(inner):
            raise StartupError(f"{where}: {inner.__qualname__} is abstract; define {', '.join(missing)}")
        if "/" in name or name in found:
            problem = "a slash, which those have that clients register" if "/" in name else "another processor"
            raise StartupError(f"{where}: the name {name!r} has {problem}; give it another name, or leave it out")
        found[name] = processor
    return found


def _all(config: ServerConfig, given: Iterable[object]) -> Iterator[tuple[str, Any, str]]:
    """The name, the processor, and where it is from."""
    for path in dict.fromkeys(config.logits_processors):
        where = f"--logits-processors {path}"
        yield path, _imported(path, where), where
    groups = [ENTRY_POINTS] if config.entry_points else []
    groups += [VLLM_ENTRY_POINTS] if config.vllm_entry_points else []
    for group in groups:
        for point in entry_points(group=group):
            package = point.dist.name if point.dist is not None else "a package"
            where = f"entry point {point.name!r} of {package} (group {group!r}; --no-entry-points leaves all out)"
            yield point.name, _loaded(point, where), where
    for processor in given:
        author = author_of(processor)
        name = f"{author.__module__}:{author.__qualname__}"
        yield name, processor, f"processor {name}"


def _imported(path: str, where: str) -> Any:
    module, _, name = path.partition(":")
    try:
        imported = importlib.import_module(module)
    except Exception as error:
        raise StartupError(f"{where}: {_why(error)}") from error
    try:
        return attrgetter(name)(imported)
    except AttributeError as error:
        near = get_close_matches(error.name or "", dir(error.obj), 1)
        meant = f"; write {near[0]} if that is what was meant" if near else ""
        raise StartupError(f"{where}: {module} has no {name}{meant}") from error
    except Exception as error:  # a module's own __getattr__ may import
        raise StartupError(f"{where}: {_why(error)}") from error


def _loaded(point: EntryPoint, where: str) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise StartupError(f"{where}, which is {point.value}: {_why(error)}") from error


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}; install what is missing, or leave the processor out"
