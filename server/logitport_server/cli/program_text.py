"""A program as text for readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logitport_programs.rules import OPERATORS
from logitport_programs.types import Element, Size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_programs.program import Parameter, Value
    from logitport_programs.verifier import Verified

_DTYPES = {Element.FLOAT32: "<f4", Element.INT64: "<i8", Element.BOOL: "?"}
_ELEMENTS_SHOWN = 8


def parameters(verified: Verified) -> Iterator[str]:
    """One line for each parameter: its name, type, default and limits."""
    return map(_parameter, verified.program.parameters)


def values(verified: Verified) -> Iterator[str]:
    """One line for each value: position, type, operator, inputs, fields, and the first elements of a constant."""
    for position, (value, kind) in enumerate(zip(verified.program.values, verified.types, strict=True)):
        arguments = [f"%{source}" for source in value.inputs] + list(_fields(value))
        yield f"%{position} {kind} = {value.operator}({', '.join(arguments)})"


def _parameter(parameter: Parameter) -> str:
    if parameter.length:
        default = "required" if parameter.default is None else "default empty"
        return f"{parameter.name}: up to {parameter.length} token ids, {default}"
    default = "required" if parameter.default is None else f"default {parameter.default:g}"
    return f"{parameter.name}: {parameter.element}, {default}, in [{parameter.minimum:g}, {parameter.maximum:g}]"


def _fields(value: Value) -> Iterator[str]:
    for name in sorted(OPERATORS[value.operator].fields - {"element", "shape"}):
        field = getattr(value, name)
        if name == "data":
            yield _data(value)
        elif name == "parameter":
            yield field
        elif isinstance(field, Size):
            yield f"{name}={field}"
        elif field or (value.operator == "full" and value.element is not None and name == _number_of(value.element)):
            yield f"{name}={field!r}"


def _number_of(element: Element) -> str:
    return "number" if element.is_float else "integer"


def _data(value: Value) -> str:
    assert value.element is not None  # noqa: S101 - the program is verified
    elements = np.frombuffer(value.data, _DTYPES[value.element])
    shown = ", ".join(map(str, elements[:_ELEMENTS_SHOWN].tolist()))
    return f"{len(value.data)} bytes: {shown}{', ...' if len(elements) > _ELEMENTS_SHOWN else ''}"
