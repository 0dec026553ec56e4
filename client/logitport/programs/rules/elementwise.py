"""Rules of the operators that work on each element."""

# ruff: noqa: ARG001, D103 - all rules have one signature, which rules/__init__.py describes

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.programs.rules.checks import broadcast, check_float, given_element, listed, refuse
from logitport.programs.types import Element, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.programs.program import Value
    from logitport.programs.rules.checks import Context


def cast(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return inputs[0]._replace(element=given_element(value))


def of(*elements: Element) -> Callable[[Value, Sequence[Type], Context], Type]:
    """The rule of elementwise operators on inputs of one of these element types, which all inputs share."""

    def rule(value: Value, inputs: Sequence[Type], context: Context) -> Type:
        if inputs[0].element not in elements:
            refuse(value, f"an input is {inputs[0]}; it must be {listed(elements)}")
        return broadcast(value, inputs)

    return rule


def compare(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    return broadcast(value, inputs)._replace(element=Element.BOOL)


def is_nan(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    check_float(value, inputs[0])
    return inputs[0]._replace(element=Element.BOOL)


def where(value: Value, inputs: Sequence[Type], context: Context) -> Type:
    if inputs[0].element is not Element.BOOL:
        refuse(value, f"the condition is {inputs[0]}; it must be bool")
    result = broadcast(value, inputs[1:])
    return broadcast(value, (inputs[0]._replace(element=result.element), result))
