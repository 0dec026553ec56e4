"""Parameters that a processor declares in its attribute `params`, and the values that a request gives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection


class Declared(ABC):
    """One declared parameter.

    Attributes:
        annotated: the type that `Annotated` has with it.
        description: one line about it, for `help` and forms.
    """

    annotated: ClassVar[Any]
    description: str

    @abstractmethod
    def explained(self) -> str:
        """Return its type, limits, default and description in one line."""

    @abstractmethod
    def described(self, description: str) -> Declared:
        """Return a copy with a description."""

    @abstractmethod
    def read(self, name: str, params: Mapping[str, Any]) -> Any:
        """Return the value of the parameter `name`, or its default.

        Raises:
            InvalidArgument: it is missing without a default, has another type, or is outside the limits.
        """


def declared_params(processor: type) -> Mapping[str, Declared]:
    """Return what a processor's class declares in `params`; empty if that is missing or something else."""
    declared = getattr(processor, "params", None)
    if isinstance(declared, Mapping) and all(isinstance(one, Declared) for one in declared.values()):
        return declared
    return {}


def check_declared(processor: type) -> None:
    """Check that a class with a dict in `params` declares each of its parameters there.

    Raises:
        InvalidArgument: a value is something else, such as the class `Int` instead of `Int()`.
    """
    declared = getattr(processor, "params", None)
    for name, one in declared.items() if isinstance(declared, Mapping) else ():
        if not isinstance(one, Declared):
            raise InvalidArgument(
                f"{processor.__qualname__}.params[{name!r}]: declare Float, Int, Bool or TokenIds, such as Int(ge=0), "
                f"and not {one!r:.100}"
            )


def complete_params(processor: type, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the value of each parameter that the class declares: that of the request, or the default.

    If it declares none, return `params`.

    Raises:
        InvalidArgument: a key is missing or unknown, or its value has another type or is outside the limits.
    """
    declared = declared_params(processor)
    if not declared:
        return params
    try:
        refuse_unknown(declared, params)
        return {name: one.read(name, params) for name, one in declared.items()}
    except InvalidArgument as error:
        raise InvalidArgument(f"{processor.__name__}: {error.message}") from None


def refuse_unknown(names: Collection[str], params: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for a key that is not in `names`. Engines add keys that start with two underscores."""
    if unknown := [key for key in params if key not in names and not key.startswith("__")]:
        raise InvalidArgument(f"there is no parameter {unknown[0]!r:.100}; set only: {', '.join(names) or 'none'}")
