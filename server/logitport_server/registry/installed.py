"""Installed processors: the built-ins, and those that the operator's options load at start-up.

They are trusted like the server's own code: they run in its process, and calling them by name needs no option.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from logitport.dialects import OF_CLASSES, author_of, missing_methods, recognise
from logitport_builtins import BUILTINS
from logitport_server.config import StartupError
from logitport_server.config.errors import proposal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import EntryPoint

    from logitport_server.config import ServerConfig

ENTRY_POINTS = "logitport.processors"


def load(config: ServerConfig, given: Iterable[object] = ()) -> dict[str, Any]:
    """Return the installed processors, of any dialect, by the name that requests use.

    The name of a built-in or an entry point is its own. The name of a processor of `--logits-processors` or `given` is
    `module.path:Class`.

    Args:
        config: the options, which select the processors to load.
        given: further classes or functions, passed by a program that embeds the server.

    Raises:
        StartupError: a processor cannot be imported or is not a processor, or a name occurs twice.
    """
    found: dict[str, Any] = dict(BUILTINS)
    for name, processor, where in _all(config, given):
        try:
            inner, dialect = recognise(processor)
        except TypeError as error:
            raise StartupError(f"{where}: {error}") from error
        if dialect in OF_CLASSES and not isinstance(inner, type):
            raise StartupError(f"{where}: the dialect {dialect!r} needs a class, not a {type(inner).__qualname__}")
        if missing := missing_methods(inner):
            raise StartupError(f"{where}: {inner.__qualname__} is abstract; define {', '.join(missing)}")
        if "/" in name or name in found:
            problem = "has a slash, as only registered names do" if "/" in name else "is taken by another processor"
            raise StartupError(f"{where}: the name {name!r} {problem}; give it another name, or leave it out")
        found[name] = processor
    return found


def _all(config: ServerConfig, given: Iterable[object]) -> Iterator[tuple[str, Any, str]]:
    """Yield the name of each processor, the processor, and its origin for error messages."""
    for path in dict.fromkeys(config.logits_processors):
        where = f"--logits-processors {path}"
        yield path, _imported(path, where), where
    for point in entry_points(group=ENTRY_POINTS) if config.entry_points else ():
        package = point.dist.name if point.dist is not None else "a package"
        where = f"entry point {point.name!r} of {package} (group {ENTRY_POINTS!r}; --no-entry-points disables them all)"
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
        raise StartupError(f"{where}: {_advice(error)}") from error
    try:
        return attrgetter(name)(imported)
    except AttributeError as error:
        hint = proposal(error.name or "", dir(error.obj))
        raise StartupError(f"{where}: {module} has no {name}{hint}") from error
    except Exception as error:  # a module's own __getattr__ can raise anything
        raise StartupError(f"{where}: {_advice(error)}") from error


def _loaded(point: EntryPoint, where: str) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise StartupError(f"{where}, which is {point.value}: {_advice(error)}") from error


def _advice(error: Exception) -> str:
    return f"{type(error).__name__}: {error}; install what is missing, or leave out the processor"
