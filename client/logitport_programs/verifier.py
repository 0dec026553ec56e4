"""Verifies a program before it runs: memory-safe, without data that flows between rows, and of bounded size.

A verified program is not harmless: it may still set logits to any value. A client verifies each program itself, because
it trusts no server.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_programs import denial
from logitport_programs.program import (
    MAX_INPUTS,
    MAX_LIST_LENGTH,
    MAX_PARAMETERS,
    MAX_RANK,
    MAX_TOKEN_ID,
    MAX_VALUES,
    Value,
)
from logitport_programs.rules import HISTORY_OPERATORS, OPERATORS, Context, check_sizes
from logitport_programs.types import VOCAB, Element, Type

if TYPE_CHECKING:
    from logitport_programs.program import Parameter, Program

MAX_WINDOW = 8192
MAX_NAME_LENGTH = 64
# A sort of 16 rows of 151,936 logits takes 0.4 s on one core, and cannot be interrupted.
MAX_SORTS = 1
# Of one row of a value: 27 values of a vocabulary of 151,936.
MAX_ROW_ELEMENTS = 1 << 22
# A parameter's default is sent as a double, which has all integers up to this one.
_MAX_EXACT = 1 << 53
_UNUSED = Value("")
_FIELDS = [field.name for field in dataclasses.fields(Value) if field.name not in ("operator", "inputs")]


class Verified(NamedTuple):
    """A verified program.

    Attributes:
        program: the program.
        types: the type of each value.
    """

    program: Program
    types: tuple[Type, ...]

    @property
    def reads_history(self) -> bool:
        """Whether the program reads the histories of requests."""
        return any(value.operator in HISTORY_OPERATORS for value in self.program.values)

    @property
    def only_denies(self) -> bool:
        """Whether it follows from the operators that the program changes no logit but to -inf."""
        return denial.only_denies(self.program, self.types)

    def shape(self, value: int, rows: int, vocab_size: int) -> tuple[int, ...]:
        """The shape of a value, for logits [rows, vocab_size].

        Raises:
            InvalidArgument: for logits of this width the value is empty, or exceeds its input.
            LimitExceeded: for logits of this width a row of the value has too many elements.
        """
        kind = self.types[value]
        sizes = self._sizes(value, vocab_size)
        name = f"value {value} of program {self.program.name!r}"
        if min(sizes, default=1) < 1:
            raise InvalidArgument(
                f"{name} is {kind}, which is empty for {vocab_size} logits: use a model with a larger vocabulary"
            )
        if math.prod(sizes) > MAX_ROW_ELEMENTS:
            raise LimitExceeded(
                f"{name} is {kind}, which has {math.prod(sizes)} elements in a row of {vocab_size} logits; "
                f"the limit is {MAX_ROW_ELEMENTS}"
            )
        described = self.program.values[value]
        source = self._sizes(described.inputs[0], vocab_size) if described.inputs else ()
        try:
            check_sizes(described, source, lambda size: size.of(vocab_size, self.program.window))
        except InvalidArgument as error:
            raise InvalidArgument(f"{name}, for {vocab_size} logits: {error.message}") from None
        return ((rows,) if kind.has_rows else ()) + sizes

    def check_width(self, vocab_size: int) -> None:
        """Check that the program can run on logits of this width. Raises the errors of `shape`."""
        for value in range(len(self.types)):
            self.shape(value, 1, vocab_size)

    def _sizes(self, value: int, vocab_size: int) -> tuple[int, ...]:
        return tuple(size.of(vocab_size, self.program.window) for size in self.types[value].shape)


def verify(program: Program) -> Verified:
    """Check a program.

    Raises:
        InvalidArgument: the program breaks a rule; the message names the value.
        LimitExceeded: it has too many values or parameters, or a window that is too long.
    """
    _check_limits(program)
    parameters = _check_parameters(program.parameters)
    context = Context(parameters, program.window)
    types: list[Type] = []
    for position, value in enumerate(program.values):
        try:
            types.append(_type_of(value, position, types, context))
        except InvalidArgument as error:
            raise InvalidArgument(f"value {position} of program {program.name!r}: {error.message}") from None
    if types[-1] != Type(Element.LOGITS, (VOCAB,)):
        raise InvalidArgument(
            f"the result of program {program.name!r} is {types[-1]}; it must be {Type(Element.LOGITS, (VOCAB,))}"
        )
    _check_all_used(program)
    return Verified(program, tuple(types))


def _check_limits(program: Program) -> None:
    sorts = sum(value.operator == "argsort" for value in program.values)
    for what, number, limit in (
        ("values", len(program.values), MAX_VALUES),
        ("inputs of one value", max((len(value.inputs) for value in program.values), default=0), MAX_INPUTS),
        ("parameters", len(program.parameters), MAX_PARAMETERS),
        ("ids in its window", program.window, MAX_WINDOW),
        ("characters in its name", len(program.name), MAX_NAME_LENGTH),
        ("sorts", sorts, MAX_SORTS),
    ):
        if number > limit:
            raise LimitExceeded(f"a program has {number} {what}; the limit is {limit}")
    if not program.name.isprintable():  # it is shown in errors and logs
        raise InvalidArgument(f"the name {program.name!a} has a character that is not printable")
    if not program.values:
        raise InvalidArgument("a program without values: its last value is the result")


def _check_parameters(parameters: tuple[Parameter, ...]) -> dict[str, Parameter]:
    by_name: dict[str, Parameter] = {}
    for parameter in parameters:
        name = parameter.name
        if not name.isidentifier() or len(name) > MAX_NAME_LENGTH:
            raise InvalidArgument(f"parameter {name[:MAX_NAME_LENGTH]!r}: the name must be an identifier")
        if name in by_name:
            raise InvalidArgument(f"parameter {name!r} is declared twice")
        if parameter.element is Element.LOGITS:
            raise InvalidArgument(f"parameter {name!r} must be float32, int64 or bool")
        if parameter.length:
            _check_list(parameter)
        if not parameter.minimum <= parameter.maximum:
            raise InvalidArgument(f"parameter {name!r} has the limits {parameter.minimum} and {parameter.maximum}")
        if parameter.default is not None and not parameter.minimum <= parameter.default <= parameter.maximum:
            raise InvalidArgument(f"parameter {name!r} has the default {parameter.default}, outside its limits")
        if parameter.element is Element.INT64 and parameter.default is not None and not _is_whole(parameter.default):
            raise InvalidArgument(f"parameter {name!r} is int64, its default is {parameter.default}")
        if parameter.element is Element.BOOL and parameter.default not in (None, 0, 1):
            raise InvalidArgument(f"parameter {name!r} is bool, its default is {parameter.default}")
        by_name[name] = parameter
    return by_name


def _check_list(parameter: Parameter) -> None:
    name = parameter.name
    if parameter.length > MAX_LIST_LENGTH:
        raise LimitExceeded(f"parameter {name!r} has up to {parameter.length} ids; the limit is {MAX_LIST_LENGTH}")
    if parameter.element is not Element.INT64 or (parameter.minimum, parameter.maximum) != (0, MAX_TOKEN_ID):
        raise InvalidArgument(f"parameter {name!r} is a list: it must be int64, with the limits 0 and {MAX_TOKEN_ID}")
    if parameter.default not in (None, 0):
        raise InvalidArgument(f"parameter {name!r} is a list: its default must be 0, the empty list")


def _is_whole(number: float) -> bool:
    return math.isfinite(number) and int(number) == number and abs(number) <= _MAX_EXACT


def _type_of(value: Value, position: int, types: list[Type], context: Context) -> Type:
    operator = OPERATORS.get(value.operator)
    if operator is None:
        raise InvalidArgument(f"unknown operator {value.operator[:MAX_NAME_LENGTH]!r}")
    if any(source >= position for source in value.inputs):
        raise InvalidArgument(f"{value.operator}: an input is not an earlier value")
    expected = operator.inputs
    if len(value.inputs) != expected if expected is not None else not value.inputs:
        number = "one or more" if expected is None else expected
        raise InvalidArgument(f"{value.operator}: {len(value.inputs)} inputs instead of {number}")
    for name in _FIELDS:
        if name not in operator.fields and _is_set(getattr(value, name), getattr(_UNUSED, name)):
            raise InvalidArgument(f"{value.operator}: does not use the field {name}")
    result = operator.rule(value, [types[source] for source in value.inputs], context)
    if len(result.shape) > MAX_RANK:
        raise InvalidArgument(f"{value.operator}: {result} has more than {MAX_RANK} axes")
    return result


def _is_set(field: object, unset: object) -> bool:
    return field != unset or (isinstance(field, float) and math.copysign(1.0, field) < 0)  # -0.0 has other bytes


def _check_all_used(program: Program) -> None:
    """A program has one form: no value is unused, because two programs with one meaning would differ."""
    used = {source for value in program.values for source in value.inputs} | {len(program.values) - 1}
    if unused := set(range(len(program.values))) - used:
        raise InvalidArgument(f"value {min(unused)} of program {program.name!r} is not used: remove it")
    read = {value.parameter for value in program.values if value.operator == "parameter"}
    if unread := [parameter.name for parameter in program.parameters if parameter.name not in read]:
        raise InvalidArgument(f"parameter {unread[0]!r} of program {program.name!r} is not used: remove it")
