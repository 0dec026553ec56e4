"""Types of the values of a program: an element type, and a shape whose sizes depend on the engine's vocabulary."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from logitport_proto import program_pb2


class Element(IntEnum):
    """Element type of a value. `LOGITS` is the type of the engine's logits: float32, float16 or bfloat16."""

    LOGITS = program_pb2.ELEMENT_TYPE_LOGITS
    FLOAT32 = program_pb2.ELEMENT_TYPE_FLOAT32
    INT64 = program_pb2.ELEMENT_TYPE_INT64
    BOOL = program_pb2.ELEMENT_TYPE_BOOL

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self in (Element.LOGITS, Element.FLOAT32)

    def __str__(self) -> str:
        return self.name.lower()


class Size(NamedTuple):
    """A size: `vocab` * width of the logits + `window` * window of the program + `constant`."""

    vocab: int = 0
    window: int = 0
    constant: int = 0

    def of(self, vocab_size: int, window: int) -> int:
        """The number of elements, for logits of this width and a window of this length."""
        return self.vocab * vocab_size + self.window * window + self.constant

    def plus(self, other: Size) -> Size:
        """The sum."""
        return Size(self.vocab + other.vocab, self.window + other.window, self.constant + other.constant)

    def minus(self, other: Size) -> Size:
        """The difference, which may be negative."""
        return Size(self.vocab - other.vocab, self.window - other.window, self.constant - other.constant)

    def __str__(self) -> str:
        terms = [_term(self.vocab, "vocab"), _term(self.window, "window")]
        if self.constant or not any(terms):
            terms.append(f"{self.constant:+d}")
        return "".join(filter(None, terms)).removeprefix("+")


ONE = Size(constant=1)
VOCAB = Size(vocab=1)
WINDOW = Size(window=1)

Shape = tuple[Size, ...]


class Type(NamedTuple):
    """Type of a value.

    Attributes:
        element: the element type.
        shape: sizes of the dimensions after the rows.
        has_rows: whether there is a leading dimension of rows. A value without it is the same for all rows.
    """

    element: Element
    shape: Shape = ()
    has_rows: bool = True

    def __str__(self) -> str:
        sizes = ", ".join(["rows"] * self.has_rows + [str(size) for size in self.shape])
        return f"{self.element}[{sizes}]"


def _term(factor: int, name: str) -> str:
    if not factor:
        return ""
    return f"{'+' if factor > 0 else '-'}{'' if abs(factor) == 1 else f'{abs(factor)}*'}{name}"
