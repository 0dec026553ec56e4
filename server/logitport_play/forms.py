"""The page's fields for the parameters of a processor."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from logitport.dialects import DYNAMO, TRANSFORMERS, InDialect, recognise
from logitport_builtins import BUILTINS
from logitport_play.builtin_forms import BUILTIN_FIELDS, STARTERS, Field
from logitport_programs.authoring.declarations import Declaration
from logitport_programs.program import Program
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_programs.program import Parameter

# Arguments of every call, before those that are parameters.
_OF_CALLS = 2
_KINDS: Mapping[object, str] = {bool: "boolean", int: "integer", float: "number", str: "text"}


@dataclass(frozen=True)
class Form:
    """Description of a processor for the page, which gets its attributes as JSON.

    Attributes:
        name: the processor's.
        group: where the page lists it.
        summary: the first line of its docstring.
        fields: its parameters; None if they are not declared: the page then takes JSON.
        params: parameters to begin with.
    """

    name: str
    group: str
    summary: str
    fields: tuple[Field, ...] | None
    params: Mapping[str, Any]


def builtin_forms() -> list[Form]:
    """The forms of all built-ins."""
    return [_builtin(name, builtin) for name, builtin in BUILTINS.items()]


def form_of(name: str, group: str, processor: object) -> Form:
    """Read the declarations of an author's processor: `params`, or annotated arguments."""
    fields = _declared(processor)
    params = {} if fields is None else {one.name: one.default for one in fields if one.default is not None}
    return Form(name, group, _summary(processor), fields, params)


def _builtin(name: str, builtin: Any) -> Form:
    if isinstance(builtin, Program):
        fields = tuple(_of_parameter(parameter) for parameter in builtin.parameters)
        return Form(name, "built-in programs", "", fields, STARTERS[name])
    return Form(name, "built-in edits", _summary(builtin), BUILTIN_FIELDS.get(name), STARTERS[name])


def _declared(processor: object) -> tuple[Field, ...] | None:
    inner, dialect = recognise(processor)
    declared = getattr(inner, "params", None)
    if isinstance(declared, Mapping) and all(isinstance(one, Declaration) for one in declared.values()):
        return tuple(
            replace(_of_parameter(one.parameter(name)), help=one.description) for name, one in declared.items()
        )
    if dialect not in (TRANSFORMERS, DYNAMO):
        return None
    if isinstance(inner, type):
        return _of_arguments(inner.__init__, skip=1)  # type: ignore[misc] # of the class itself
    if inspect.isfunction(inner):
        return _of_arguments(inner, skip=_OF_CALLS)
    return ()  # instances take no parameters


def _of_parameter(parameter: Parameter) -> Field:
    name, required = parameter.name, parameter.default is None
    default = parameter.default
    if parameter.length:
        return Field(name, "token_ids", None if required else [], required=required)
    if parameter.element is Element.BOOL:
        return Field(name, "boolean", None if default is None else bool(default), required=required)
    limits = (_finite(parameter.minimum), _finite(parameter.maximum))
    if parameter.element is Element.INT64:
        return Field(name, "integer", None if default is None else int(default), *limits, required=required)
    return Field(name, "number", default, *limits, required=required)


def _of_arguments(function: Any, skip: int) -> tuple[Field, ...] | None:
    """Fields of annotated arguments; None if an argument has no type of a field."""
    try:
        arguments = [*inspect.signature(function).parameters.values()][skip:]
        hints = typing.get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError):
        return None
    fields = [_of_argument(argument, hints.get(argument.name)) for argument in arguments if not _is_rest(argument)]
    known = [field for field in fields if field is not None]
    return tuple(known) if len(known) == len(fields) else None


def _of_argument(argument: inspect.Parameter, hint: Any) -> Field | None:
    required = argument.default is argument.empty
    default = None if required else argument.default
    notes: Sequence[Any] = getattr(hint, "__metadata__", ())
    name, text = argument.name, next((note for note in notes if isinstance(note, str)), "")
    for note in notes:
        if isinstance(note, Declaration):
            return replace(_of_parameter(note.parameter(name)), default=default, required=required, help=text)
    base = typing.get_args(hint)[0] if notes else hint
    if base is None and isinstance(default, (bool, int, float, str)):
        base = type(default)
    kind = _KINDS.get(base)
    return None if kind is None else Field(name, kind, default, required=required, help=text)


def _is_rest(argument: inspect.Parameter) -> bool:
    return argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD) or argument.name == "device"


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _summary(processor: object) -> str:
    author = processor.processor if isinstance(processor, InDialect) else processor
    own = vars(author).get("__doc__") if isinstance(author, type) else getattr(author, "__doc__", "")
    return (inspect.cleandoc(own).splitlines() or [""])[0] if isinstance(own, str) else ""
