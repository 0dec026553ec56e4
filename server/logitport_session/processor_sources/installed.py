"""Installed processors: the built-ins, and those that the operator has installed.

They are trusted like our own code: they run in the process of the session, and calling them by name needs no option.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from logitport import payload
from logitport.dialects import OF_CLASSES, author_of, missing_methods, recognise
from logitport.errors import InvalidArgument, NotFound
from logitport_builtins import BUILTINS
from logitport_programs.program import Program
from logitport_programs.verifier import verify
from logitport_proto import registry_pb2
from logitport_session.processor_sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import EntryPoint

    from logitport_programs.verifier import Verified

ENTRY_POINTS = "logitport.processors"


class Installed(Mapping[str, Any]):
    """Installed processors by the name that requests use. Their programs are verified by `verify`, or at first use."""

    def __init__(self, processors: Mapping[str, Any]) -> None:
        self._processors = processors
        self._programs: dict[str, Verified] = {}
        self._slow = {
            name
            for name, processor in processors.items()
            if not isinstance(processor, Program) and getattr(processor, "takes_long", True)
        }

    def __getitem__(self, name: str) -> Any:
        return self._processors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._processors)

    def __len__(self) -> int:
        return len(self._processors)

    @property
    def has_only_builtins(self) -> bool:
        """Whether the operator has installed no processors in addition to the built-ins."""
        return self.keys() <= BUILTINS.keys()

    def is_fast(self, name: str) -> bool:
        """Whether requests with this processor are admitted fast. True if no processor has this name."""
        return name not in self._slow

    def source(self, name: str) -> Source:
        """Look up a processor. Raises NotFound, or as `verify`."""
        if name not in self:
            raise NotFound(
                f"no built-in is called {name!r}; installed are {', '.join(sorted(self))} "
                "(a registered name has a namespace, as in team/ban-french)"
            )
        return Source(name, installed=self[name], program=self._verified(name))

    def verify(self) -> Installed:
        """Verify all programs. Returns this object. Raises InvalidArgument, LimitExceeded if one breaks a rule."""
        for name in self:
            self._verified(name)
        return self

    def describe(self, name: str) -> registry_pb2.ProcessorInfo:
        """Return the message that describes a processor to clients."""
        processor = self[name]
        if isinstance(processor, Program):
            dialect, class_name = payload.PROGRAM, processor.name
        else:
            processor, dialect = recognise(processor)
            class_name = author_of(processor).__qualname__
        return registry_pb2.ProcessorInfo(
            names=[name], builtin=True, shared=True, class_name=class_name, dialect=dialect
        )

    def _verified(self, name: str) -> Verified | None:
        """Return a program; None for a processor of another kind."""
        processor = self[name]
        if not isinstance(processor, Program):
            return None
        found = self._programs.get(name)
        if found is None:
            found = self._programs[name] = verify(processor)
        return found


def load(paths: Iterable[str] = (), *, with_entry_points: bool = True, given: Iterable[object] = ()) -> dict[str, Any]:
    """Return the installed processors, of any dialect, by the name that requests use.

    The name of a built-in or an entry point is its own. The name of another processor is `module.path:Class`.

    Args:
        paths: `module.path:Class` of classes to import, as for `--logits-processors`.
        with_entry_points: whether processors of installed packages are loaded.
        given: further classes or functions.

    Raises:
        InvalidArgument: a processor cannot be imported or is not a processor, or a name occurs twice.
    """
    found: dict[str, Any] = dict(BUILTINS)
    for name, processor, where in _all(paths, given, with_entry_points=with_entry_points):
        try:
            inner, dialect = recognise(processor)
        except TypeError as error:
            raise InvalidArgument(f"{where}: {error}") from error
        if dialect in OF_CLASSES and not isinstance(inner, type):
            raise InvalidArgument(f"{where}: the dialect {dialect!r} needs a class, not a {type(inner).__qualname__}")
        if missing := missing_methods(inner):
            raise InvalidArgument(f"{where}: {inner.__qualname__} is abstract; define {', '.join(missing)}")
        if "/" in name or name in found:
            problem = "has a slash, as only registered names do" if "/" in name else "is taken by another processor"
            raise InvalidArgument(f"{where}: the name {name!r} {problem}; give it another name, or leave it out")
        found[name] = processor
    return found


def _all(paths: Iterable[str], given: Iterable[object], *, with_entry_points: bool) -> Iterator[tuple[str, Any, str]]:
    """Yield the name of each processor, the processor, and its origin for error messages."""
    for path in dict.fromkeys(paths):
        where = f"--logits-processors {path}"
        yield path, _imported(path, where), where
    for point in entry_points(group=ENTRY_POINTS) if with_entry_points else ():
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
        raise InvalidArgument(f"{where}: {_advice(error)}") from error
    try:
        return attrgetter(name)(imported)
    except AttributeError as error:
        near = difflib.get_close_matches(error.name or "", dir(error.obj), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidArgument(f"{where}: {module} has no {name}{hint}") from error
    except Exception as error:  # a module's own __getattr__ can raise anything
        raise InvalidArgument(f"{where}: {_advice(error)}") from error


def _loaded(point: EntryPoint, where: str) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise InvalidArgument(f"{where}, which is {point.value}: {_advice(error)}") from error


def _advice(error: Exception) -> str:
    return f"{type(error).__name__}: {error}; install what is missing, or leave out the processor"
