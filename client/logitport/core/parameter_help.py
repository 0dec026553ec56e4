"""Shows the declared parameters of a processor in its docstring, for `help`."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import cleandoc
from typing import Annotated, Any, get_args, get_origin

from logitport.core.declared import Declared
from logitport.errors import InvalidArgument

_SECTION = "Parameters:"


def show_parameters(cls: Any) -> None:
    """Replace `Annotated` in the `params` of a new class by its declaration, and add a section to the docstring.

    A class is left as it is if its own `params` hold something else than declarations.

    Raises:
        InvalidArgument: the type in `Annotated` is not that of the declaration.
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
