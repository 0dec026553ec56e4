"""What an installed package may replace by name, without touching ours."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from logitport.errors import InvalidArgument, LoadFailed

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY_POINTS = "logitport.plugins"

_Class = TypeVar("_Class", bound="type[Pluggable]")


class Pluggable:
    """The base of each family of things that can be replaced, such as `LogitOp`: one table of names a family.

    A package replaces a member from a module that it names under the entry point group "logitport.plugins";
    the module is imported when the first member is needed.

    Attributes:
        name: the name under which a class is registered.
    """

    name: ClassVar[str] = ""
    _ours: ClassVar[dict[str, type[Pluggable]]]
    _replacements: ClassVar[dict[str, type[Pluggable]]]
    _instances: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Pluggable in cls.__bases__:
            cls._ours, cls._replacements, cls._instances = {}, {}, {}

    @classmethod
    def names(cls) -> list[str]:
        """The registered names of this family, sorted."""
        return sorted(cls._ours)

    @classmethod
    def get(cls, name: str) -> Any:
        """The one instance of what stands under `name`, made when first asked for.

        Raises:
            InvalidArgument: nothing is registered under that name.
            LoadFailed: a plugin could not be imported.
        """
        try:
            return cls._instances[name]
        except KeyError:
            _load_plugins()
            cls._check_known(name)
            instance = cls._instances[name] = cls._replacements.get(name, cls._ours[name])()
            return instance

    @classmethod
    def register(cls, name: str) -> Callable[[_Class], _Class]:
        """Decorate a class to register it. Raises InvalidArgument if the name is taken."""

        def enter(member: _Class) -> _Class:
            if name in cls._ours:
                raise InvalidArgument(f"{cls.__name__} {name!r} is registered already; to replace it, use register_oot")
            member.name = name
            cls._ours[name] = member
            return member

        return enter

    @classmethod
    def register_oot(cls, name: str) -> Callable[[_Class], _Class]:
        """Decorate a class to put it in the place of the registered one (oot: out of tree).

        Raises:
            InvalidArgument: nothing is registered under that name, it is replaced already, or by another family.
        """
        cls._check_known(name)

        def replace(member: _Class) -> _Class:
            family = next(base for base in cls.__mro__ if Pluggable in base.__bases__)
            if not issubclass(member, family):
                raise InvalidArgument(
                    f"{member.__qualname__} cannot replace {name!r}: derive it from {family.__name__}"
                )
            if name in cls._replacements:
                raise InvalidArgument(f"{name!r} is replaced already, by {describe(cls._replacements[name])}")
            member.name = name
            cls._replacements[name] = member
            cls._instances.pop(name, None)
            return member

        return replace

    @classmethod
    def unregister_oot(cls, name: str) -> None:
        """Put ours back. Raises InvalidArgument if it was not replaced."""
        if cls._replacements.pop(name, None) is None:
            raise InvalidArgument(f"{name!r} is not replaced")
        cls._instances.pop(name, None)

    @classmethod
    def _check_known(cls, name: str) -> None:
        if name not in cls._ours:
            raise InvalidArgument(f"no {cls.__name__} is named {name!r}; there are: {', '.join(cls.names()) or 'none'}")


class PipelineStage(Pluggable):
    """A whole stage of the pipeline, called with whatever that stage takes. It has no methods for platforms."""


def describe(member: type[Any]) -> str:
    """Where a class comes from, for messages and tables."""
    return f"{member.__module__}.{member.__qualname__}"


@cache
def _load_plugins() -> None:
    from importlib.metadata import entry_points

    for plugin in entry_points(group=ENTRY_POINTS):
        try:
            plugin.load()
        except Exception as error:
            raise LoadFailed(f"plugin {plugin.name!r} ({plugin.value}) could not be imported: {error!r}") from error
