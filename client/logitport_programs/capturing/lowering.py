"""Helpers for the lowering of torch's operators: types, sizes, broadcasting, casts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from logitport.errors import NotCapturable
from logitport_programs.types import ONE, Element, Shape, Size, Type

if TYPE_CHECKING:
    import sympy  # type: ignore[import-untyped]

    from logitport_programs.capturing.builder import Builder


class Lowered(NamedTuple):
    """A tensor of torch, as a value.

    Attributes:
        value: its position in the program.
        rank: number of torch's dimensions.
        rowed: whether torch's dimension 0 is the rows. The value may still be the same for all rows.
    """

    value: int
    rank: int
    rowed: bool


Operand = Lowered | int | float | bool | torch.SymInt
# The arguments of an operator of torch, by the names in its schema.
Arguments = dict[str, Any]


class Meta(NamedTuple):
    """Element type and dimensions of a tensor of torch; the rows are the first one if `rowed`."""

    element: Element
    shape: Shape
    rowed: bool


class Lowering:
    """State of a lowering.

    Attributes:
        build: the program so far.
        meta: the first result of the present operator, as torch describes it.
        has_rows: whether torch's tensors have a dimension of rows; False if one row is traced.
    """

    def __init__(self, build: Builder, logits: torch.Tensor) -> None:
        self.build = build
        self.meta = Meta(Element.LOGITS, (), False)
        self.has_rows = logits.dim() > 1
        self._rows, self._vocab = _expression(logits.shape[0]), _expression(logits.shape[-1])
        self._elements = {
            logits.dtype: Element.LOGITS,
            torch.float32: Element.FLOAT32,
            torch.int64: Element.INT64,
            torch.bool: Element.BOOL,
        }
        self._dtypes = {element: dtype for dtype, element in self._elements.items()}

    def refuse(self, reason: str) -> NoReturn:
        """Raise NotCapturable at the present line of the author."""
        raise NotCapturable(f"{self.build.line}: {reason}")

    # Types and sizes

    def describe(self, tensor: torch.Tensor) -> Meta:
        """The element type and sizes of a tensor. Refuses rows that are not dimension 0."""
        rowed = tensor.dim() > 0 and self._is_rows(tensor.shape[0])
        return Meta(self.element(tensor.dtype), tuple(self.size(one) for one in tensor.shape[rowed:]), rowed)

    def element(self, dtype: torch.dtype) -> Element:
        """The element type of a dtype."""
        if dtype not in self._elements:
            advice = "use float32, or leave the dtype of the logits" if dtype.is_floating_point else "use int64"
            self.refuse(f"a tensor of {dtype}, which programs lack: {advice}")
        return self._elements[dtype]

    def size(self, size: int | torch.SymInt) -> Size:
        """A size that does not depend on the rows."""
        expression = _expression(size)
        if isinstance(size, torch.SymInt) and expression.func.__name__ in ("Min", "Max"):
            bounds = size.node.shape_env.bound_sympy(expression)  # min(50, vocab) is 50
            expression = bounds.lower if bounds.is_singleton() else expression
        factor = expression.coeff(self._vocab, 1)
        rest = expression - factor * self._vocab
        if self.has_rows and self._rows in expression.free_symbols:
            self.refuse(
                "the number of rows is used as a number, or rows are not dimension 0 (a transposition, a flattening, "
                "a broadcast of [rows] along the vocabulary): keep rows first, and write x[:, None]"
            )
        if expression.free_symbols - {self._vocab}:
            self.refuse("a size depends on values (a mask as an index, nonzero): write torch.where(mask, x, y)")
        if not (factor.is_Integer and rest.is_Integer):
            self.refuse(f"the size {expression} is not a multiple of the width of the logits plus a constant")
        return Size(vocab=int(factor), constant=int(rest))

    def type_of(self, operand: Lowered) -> Type:
        """The type of a value."""
        return self.build.types[operand.value]

    def _is_rows(self, size: int | torch.SymInt) -> bool:
        return self.has_rows and bool(_expression(size) == self._rows)

    # Values

    def like(self, operand: Lowered, value: int) -> Lowered:
        """Another value, of the same rank."""
        return operand._replace(value=value)

    def new(self, value: int, *, rowed: bool) -> Lowered:
        """A value, of the rank that its shape has."""
        return Lowered(value, len(self.build.types[value].shape) + rowed, rowed)

    def scalar(self, number: float | torch.SymInt, element: Element) -> Lowered:
        """A number as a value [] of an element type."""
        if isinstance(number, torch.SymInt):
            return self.cast(self.count(self.size(number)), element)
        if not isinstance(number, bool | int | float):
            self.refuse(f"{type(number).__name__} is used as a number")
        return Lowered(self.build.full(element, number), 0, False)

    def count(self, size: Size) -> Lowered:
        """A size as a value, int64[]."""
        value = self.build.full(Element.INT64, size.constant)
        if size.vocab:
            vocab = self.build.vocab_size()
            if size.vocab != 1:
                vocab = self.build.emit("multiply", vocab, self.build.full(Element.INT64, size.vocab))
            value = self.build.emit("add", vocab, value) if size.constant else vocab
        return Lowered(value, 0, False)

    def cast(self, operand: Operand, element: Element) -> Lowered:
        """A tensor or number as a value of an element type."""
        if not isinstance(operand, Lowered):
            return self.scalar(operand, element)
        return self.like(operand, self.build.cast(operand.value, element))

    def promoted(self, first: Operand, second: Operand) -> Element:
        """The element type that torch converts the operands of an elementwise operator to."""
        return self.element(torch.result_type(self._example(first), self._example(second)))

    def _example(self, operand: Operand) -> Any:
        if isinstance(operand, Lowered):
            return torch.empty((1,) * operand.rank, dtype=self._dtypes[self.type_of(operand).element])
        return 1 if isinstance(operand, torch.SymInt) else operand

    # Broadcasting and axes

    def aligned(self, operand: Lowered, rank: int, rowed: bool) -> int:
        """The value of an operand of a broadcast to `rank` dimensions.

        A program's values are aligned at their last axis, apart from rows. Torch's tensors are aligned at their last
        dimension, rows included.
        """
        if operand.rowed and operand.rank != rank:
            self.refuse(f"a tensor [rows, ...] of {operand.rank} dimensions meets one of {rank}: write x[:, None]")
        value = operand.value
        if rowed and not operand.rowed and operand.rank == rank:
            value = self.build.emit("squeeze", value, axis=len(self.build.types[value].shape))
        return value

    def apply(self, operator: str, *operands: Operand, element: Element) -> Lowered:
        """An elementwise operator on operands that are cast to an element type."""
        cast = [self.cast(operand, element) for operand in operands]
        return self.combine(operator, *cast)

    def combine(self, operator: str, *operands: Lowered) -> Lowered:
        """An elementwise operator on operands as they are."""
        rank = max(operand.rank for operand in operands)
        rowed = any(operand.rowed and operand.rank == rank for operand in operands)
        value = self.build.emit(operator, *(self.aligned(operand, rank, rowed) for operand in operands))
        return Lowered(value, rank, rowed)

    def dim(self, operand: Lowered, dim: int) -> int:
        """A dimension, not negative. Refuses the rows."""
        dim = dim + operand.rank if dim < 0 else dim
        if operand.rowed and dim == 0:
            self.refuse("an operator works along dimension 0, the rows, which a program never mixes: use dim=-1")
        return dim

    def axis(self, operand: Lowered, dim: int) -> int:
        """A dimension counted from the end, as operators count axes."""
        return operand.rank - self.dim(operand, dim)

    def check_last(self, operand: Lowered, dim: int, what: str) -> None:
        """Refuse an operator along another dimension than the last one."""
        if self.axis(operand, dim) != 1:
            self.refuse(f"{what} along a dimension that is not the last one")

    def expanded(self, operand: Lowered, rowed: bool, shape: Shape) -> Lowered:
        """Repeat an operand to a shape of torch."""
        value = self.aligned(operand, len(shape) + rowed, rowed)
        return Lowered(self.build.expand(value, shape), len(shape) + rowed, rowed)

    def reshaped(self, operand: Lowered, rowed: bool, shape: Shape) -> Lowered:
        """Add and remove dimensions of size 1."""
        present = self.type_of(operand).shape
        if operand.rowed != rowed or [one for one in present if one != ONE] != [one for one in shape if one != ONE]:
            self.refuse("a view or reshape may only add or remove dimensions of size 1")
        value = operand.value
        if present != shape:
            for position in reversed(range(len(present))):
                if present[position] == ONE:
                    value = self.build.emit("squeeze", value, axis=len(present) - position)
                    present = present[:position] + present[position + 1 :]
            for position, size in enumerate(shape):
                if size == ONE:
                    count = len(self.build.types[value].shape)
                    value = self.build.emit("unsqueeze", value, axis=count + 1 - position)
        return Lowered(value, len(shape) + rowed, rowed)

    def checked(self, lowered: Lowered, meta: Meta) -> Lowered:
        """Check that a value has the type that torch's tensor has."""
        found = self.type_of(lowered)
        if (found.element, found.shape, lowered.rowed) != meta:
            expected = Type(meta.element, meta.shape, meta.rowed)
            self.refuse(f"captured as {found} instead of {expected}; please report this defect of the capture")
        return lowered


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    import sympy as sp

    return size.node.expr if isinstance(size, torch.SymInt) else sp.Integer(size)
