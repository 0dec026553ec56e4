"""Classes that are looked up by name, and that an installed package can replace."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from logitport.errors import InvalidArgument, LoadFailed

if TYPE_CHECKING:
    from collections.abc import Callable

PLUGINS = "logitport.plugins"  # entry point group; each entry is a module that registers or replaces classes

_Class = TypeVar("_Class", bound="type[Replaceable]")

_classes: dict[str, type[Replaceable]] = {}
_replacements: dict[str, type[Replaceable]] = {}


class Replaceable:
    """Base of `LogitOp` and `PipelineStage`. Names are unique across both; a wrong one raises InvalidArgument."""

    name: ClassVar[str] = ""  # set by registration

    @classmethod
    def names(cls) -> list[str]:
        """Return the registered names of this family of classes, sorted."""
        return sorted(name for name, member in _classes.items() if issubclass(member, cls))

    @classmethod
    @cache
    def get(cls, name: str) -> Any:
        """Return the single instance of a class or of its replacement. Raises LoadFailed for a broken plugin."""
        load_plugins()
        cls._check_registered(name)
        return _replacements.get(name, _classes[name])()

    @classmethod
    def register(cls, name: str) -> Callable[[_Class], _Class]:
        """Decorate a class to register it."""
        if name in _classes:
            raise InvalidArgument(f"{cls.__name__} {name!r} is registered already; to replace it, use register_oot")
        return cls._enter(_classes, name)

    @classmethod
    def register_oot(cls, name: str) -> Callable[[_Class], _Class]:
        """Decorate a class to replace the registered one (oot: out of tree)."""
        cls._check_registered(name)
        if name in _replacements:
            raise InvalidArgument(f"{name!r} is replaced already, by {full_name(_replacements[name])}")
        return cls._enter(_replacements, name)

    @classmethod
    def unregister_oot(cls, name: str) -> None:
        """Remove a replacement."""
        if _replacements.pop(name, None) is None:
            raise InvalidArgument(f"{name!r} is not replaced")
        cls.get.cache_clear()

    @classmethod
    def _enter(cls, table: dict[str, type[Replaceable]], name: str) -> Callable[[_Class], _Class]:
        def decorate(member: _Class) -> _Class:
            if not issubclass(member, cls):
                raise InvalidArgument(f"{member.__qualname__} cannot be {name!r}: derive it from {cls.__name__}")
            table[name], member.name = member, name
            cls.get.cache_clear()
            return member

        return decorate

    @classmethod
    def _check_registered(cls, name: str) -> None:
        if name not in cls.names():
            raise InvalidArgument(f"no {cls.__name__} is named {name!r}; there are: {', '.join(cls.names()) or 'none'}")


class PipelineStage(Replaceable):
    """A stage of the server's step: a callable whose arguments the stage itself defines."""


def full_name(member: type[Any]) -> str:
    """Return a class's module and qualified name."""
    return f"{member.__module__}.{member.__qualname__}"


@cache
def load_plugins() -> None:
    """Import the installed plugins, once. Raises LoadFailed if one cannot be imported."""
    for plugin in entry_points(group=PLUGINS):
        try:
            plugin.load()
        except Exception as error:
            raise LoadFailed(f"plugin {plugin.name!r} ({plugin.value}) could not be imported: {error!r}") from error
