"""Parameters that a processor declares in its attribute `params`, and the values that a request gives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection


_SECTION = "Parameters:"
# Parameters of every `EditProcessor`, which are read before its own.
PHASE_KEYS = ("phase", "phase_tags")


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
        InvalidArgument: a name of an `EditProcessor` is `phase` or `phase_tags`, which it accepts as it is.
    """
    declared = getattr(processor, "params", None)
    for name, one in declared.items() if isinstance(declared, Mapping) else ():
        if name in PHASE_KEYS and hasattr(processor, "edit"):
            raise InvalidArgument(
                f"{processor.__qualname__}.params: every EditProcessor accepts the parameter {name!r}, and does not "
                "see it: give this one another name"
            )
        if not isinstance(one, Declared):
            raise InvalidArgument(
                f"{processor.__qualname__}.params[{name!r}]: declare Float, Int, Bool or TokenIds, such as Int(ge=0), "
                f"and not {one!r:.100}"
            )


def complete_params(processor: type, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the value of each parameter that the class declares: from the request, or the default.

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
        if unknown[0] in PHASE_KEYS:
            raise InvalidArgument(f"{unknown[0]} is only for processors that read no logits: leave it out")
        raise InvalidArgument(f"there is no parameter {unknown[0]!r:.100}; set only: {', '.join(names) or 'none'}")


def show_parameters(cls: Any) -> None:
    """Replace `Annotated` in the `params` of a new class by its declaration, and add a section to the docstring.

    A class is left as it is if its own `params` hold something else than declarations.

    Raises:
        InvalidArgument: the type in `Annotated` differs from the declaration.
    """
    params = vars(cls).get("params")
    if not isinstance(params, Mapping) or not params:
        return
    found = {name: _declaration(value) for name, value in params.items()}
    declarations = {name: one for name, one in found.items() if one is not None}
    if len(declarations) < len(params):
        return
    if any(declarations[name] is not value for name, value in params.items()):
        cls.params = declarations
    if _SECTION not in (cls.__doc__ or ""):
        lines = [f"    {name}: {declaration.explained()}" for name, declaration in declarations.items()]
        section = "\n".join([_SECTION, *lines])
        # In a docstring, the indentation of the first line does not count.
        cls.__doc__ = f"{cleandoc(cls.__doc__)}\n\n{section}" if cls.__doc__ else f"\n{section}"


def _declaration(value: Any) -> Declared | None:
    """The declaration of a parameter; None if the value has none."""
    if get_origin(value) is not Annotated:
        return value if isinstance(value, Declared) else None
    annotated, *notes = get_args(value)
    declaration = next((note for note in notes if isinstance(note, Declared)), None)
    if declaration is None:
        return None
    if annotated != declaration.annotated:
        raise InvalidArgument(f"{value}: annotate {_name(declaration.annotated)}, not {_name(annotated)}")
    return declaration.described(next((note for note in notes if isinstance(note, str)), declaration.description))


def _name(annotated: Any) -> str:
    return annotated.__name__ if isinstance(annotated, type) and not get_args(annotated) else str(annotated)
