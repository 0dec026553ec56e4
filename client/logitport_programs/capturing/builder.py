"""Collects the values of a program, each once, and orders them canonically."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logitport_programs.program import Program, Value
from logitport_programs.rules import OPERATORS, Context
from logitport_programs.types import VOCAB, Element, Type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_programs.program import Parameter
    from logitport_programs.types import Shape


class Builder:
    """The values of a program so far.

    Attributes:
        values: the values.
        types: the type of each.
        lines: where the author's code needs each value first; "" if that is unknown.
        line: where the author's code is that is being captured.
    """

    def __init__(self, parameters: Mapping[str, Parameter], window: int, line: str) -> None:
        self.values: list[Value] = []
        self.types: list[Type] = []
        self.lines: list[str] = []
        self.line = line
        self._context = Context(parameters, window)
        self._known: dict[tuple[Value, bytes], int] = {}

    def emit(self, operator: str, *inputs: int, **fields: Any) -> int:
        """Add a value, or find an equal one. Returns its position.

        Raises:
            InvalidArgument: the operator does not take these inputs or fields.
        """
        value = Value(operator, inputs, **fields)
        key = value, struct.pack("<d", value.number)  # 0.0 and -0.0 are equal
        if key not in self._known:
            described = OPERATORS[operator].rule(value, [self.types[one] for one in inputs], self._context)
            self._known[key] = len(self.values)
            self.values.append(value)
            self.types.append(described)
            self.lines.append(self.line)
        return self._known[key]

    def full(self, element: Element, number: float, shape: Shape = ()) -> int:
        """Add a value with one number in all elements."""
        if element.is_float:
            return self.emit("full", element=element, shape=shape, number=float(number))
        return self.emit("full", element=element, shape=shape, integer=int(number))

    def vocab_size(self) -> int:
        """Add the width of the logits, int64[]."""
        return self.emit("sum", self.full(Element.INT64, 1, (VOCAB,)), axis=1)

    def cast(self, position: int, element: Element) -> int:
        """Convert a value to an element type, unless it has it."""
        source = self.values[position]
        present = self.types[position].element
        if present is element:
            return position
        if source.operator == "full" and not (present.is_float and not element.is_float):
            number = source.number if present.is_float else source.integer
            return self.full(element, number, self.types[position].shape)
        return self.emit("cast", position, element=element)

    def expand(self, position: int, shape: Shape) -> int:
        """Repeat a value along axes of size 1, unless it has this shape."""
        source = self.values[position]
        if self.types[position].shape == shape:
            return position
        if source.operator == "full":
            return self.emit("full", element=source.element, shape=shape, number=source.number, integer=source.integer)
        return self.emit("expand", position, shape=shape)

    def with_rows(self, position: int) -> int:
        """Give each row a copy of a value of logits' shape that all rows share."""
        if self.types[position].has_rows:
            return position
        # No operator repeats rows: this one has them in an input that it does not select.
        return self.emit("where", self.full(Element.BOOL, 1), position, self.emit("logits"))

    def program(self, name: str, result: int) -> tuple[Program, list[str]]:
        """Make the program with this result, and the author's line of each value.

        Values that the result does not need are left out. Each one follows its inputs, in the order of the inputs.
        """
        order: dict[int, int] = {}
        todo = [(result, False)]
        while todo:
            position, inputs_done = todo.pop()
            if position in order:
                continue
            if inputs_done:
                order[position] = len(order)
                continue
            todo.append((position, True))
            todo += [(one, False) for one in reversed(self.values[position].inputs)]
        values = [
            replace(self.values[position], inputs=tuple(order[one] for one in self.values[position].inputs))
            for position in order
        ]
        uses_window = any(value.operator in ("history", "history_length") for value in values)
        program = Program(
            name,
            tuple(values),
            tuple(self._context.parameters.values()),
            self._context.window if uses_window else 0,
        )
        return program, [self.lines[position] for position in order]
