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
_instances: dict[str, Replaceable] = {}


class Replaceable:
    """Base of `LogitOp` and `PipelineStage`. A name is unique over both."""

    name: ClassVar[str] = ""  # set by registration

    @classmethod
    def names(cls) -> list[str]:
        """Return the registered names of this family of classes, sorted."""
        return sorted(name for name, member in _classes.items() if issubclass(member, cls))

    @classmethod
    def get(cls, name: str) -> Any:
        """Return the single instance of the class registered under `name`, or of its replacement.

        Raises:
            InvalidArgument: the name is not registered.
            LoadFailed: a plugin could not be imported.
        """
        instance = _instances.get(name)
        if not isinstance(instance, cls):
            load_plugins()
            cls._check_registered(name)
            instance = _instances[name] = _replacements.get(name, _classes[name])()
        return instance

    @classmethod
    def register(cls, name: str) -> Callable[[_Class], _Class]:
        """Decorate a class to register it. Raises InvalidArgument if the name is taken."""
        if name in _classes:
            raise InvalidArgument(f"{cls.__name__} {name!r} is registered already; to replace it, use register_oot")
        return cls._enter(_classes, name)

    @classmethod
    def register_oot(cls, name: str) -> Callable[[_Class], _Class]:
        """Decorate a class to replace the registered one (oot: out of tree).

        Raises:
            InvalidArgument: the name is not registered, is replaced already, or belongs to another family.
        """
        cls._check_registered(name)
        if name in _replacements:
            raise InvalidArgument(f"{name!r} is replaced already, by {full_name(_replacements[name])}")
        return cls._enter(_replacements, name)

    @classmethod
    def unregister_oot(cls, name: str) -> None:
        """Remove a replacement. Raises InvalidArgument if there is none."""
        if _replacements.pop(name, None) is None:
            raise InvalidArgument(f"{name!r} is not replaced")
        _instances.pop(name, None)

    @classmethod
    def _enter(cls, table: dict[str, type[Replaceable]], name: str) -> Callable[[_Class], _Class]:
        def decorate(member: _Class) -> _Class:
            if not issubclass(member, cls):
                raise InvalidArgument(f"{member.__qualname__} cannot be {name!r}: derive it from {cls.__name__}")
            table[name], member.name = member, name
            _instances.pop(name, None)
            return member

        return decorate

    @classmethod
    def _check_registered(cls, name: str) -> None:
        if name not in cls.names():
            raise InvalidArgument(f"no {cls.__name__} is named {name!r}; there are: {', '.join(cls.names()) or 'none'}")


class PipelineStage(Replaceable):
    """A stage of the server's step: a callable whose arguments the stage itself defines."""


def forget_instances() -> None:
    """Create instances again at the next `get`, so that they read the configuration again."""
    _instances.clear()


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
