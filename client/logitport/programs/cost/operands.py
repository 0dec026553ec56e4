"""Inputs for which operators are slow: subnormal numbers, ties, ascending numbers, random indices, strided memory."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport.errors import InvalidProgram
from logitport.programs.cost.work import FLOATS, FREE, SORTS, key_of, units_of
from logitport.programs.program import Value
from logitport.programs.rules import OPERATORS, Context
from logitport.programs.types import Element, Size, Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

# Of one operator. Below the number from which torch divides the work of one call among threads, 32,768.
MAX_ELEMENTS = 1 << 14
# Elements between those of a strided operand: two cache lines of int64.
_STRIDE = 16
# Of a table from which random elements are read: larger than the caches of one core.
_TABLE = 1 << 20
# Steps along an axis, elements between them, and elements at each step. torch adds along an axis that is not the last
# one element by element, each in other cache lines and pages than the one before. On an AMD EPYC, `cumsum` of 4 million
# elements took 9 to 26 ns an element with steps of 16 to 4,096 elements, and 2 to 5 ns with those of two.
_FAR_SIZE, _FAR_STRIDE, _FAR_COLUMNS = 2048, 4096, 4
_ELEMENTS = {"int64": Element.INT64, "bool": Element.BOOL}


class Operand(NamedTuple):
    """One input, without rows.

    Attributes:
        numbers: name of the numbers, see `numbers`.
        dtype: float32, float16, bfloat16, int64 or bool.
        shape: the sizes.
        strides: elements between neighbors.
        elements: in memory.
    """

    numbers: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    elements: int


class Case(NamedTuple):
    """One operator on inputs for which it may be slow.

    Attributes:
        value: the operator. Its inputs are numbered from 0 on.
        operands: the inputs.
        dtype: of the result.
        shape: of the result, without rows.
        units: the units of the price, see `Work`.
        is_far: whether operands and result have the same strides, and are so large that only their elements are filled.
    """

    value: Value
    operands: tuple[Operand, ...]
    dtype: str
    shape: tuple[int, ...]
    units: float
    is_far: bool = False


@cache
def numbers(name: str) -> NDArray[Any]:
    """float32 or int64 numbers; indices are those of a table of `_TABLE` elements."""
    random, count = np.random.default_rng(0), MAX_ELEMENTS
    made: dict[str, Callable[[], Any]] = {
        "normal": lambda: random.standard_normal(count) * 5,
        "subnormal": lambda: random.uniform(1e-42, 1e-39, count),
        "small": lambda: random.uniform(1e-22, 1e-19, count),  # their products are subnormal
        "small halves": lambda: random.uniform(1e-7, 1e-4, count),
        "exponents": lambda: random.uniform(-103, -88, count),  # e^x is subnormal, or 0
        "small exponents": lambda: random.uniform(-17, -9, count),  # the same for float16
        "positive exponents": lambda: random.uniform(88, 103, count),
        "huge": lambda: random.uniform(1e30, 3e38, count),
        "infinite": lambda: np.full(count, -np.inf),
        "nan": lambda: np.full(count, np.nan),
        "zeros": lambda: np.zeros(count),
        "ascending": lambda: np.arange(count),
        "descending": lambda: -np.arange(count),
    }
    if name in made:
        return np.asarray(made[name]()).astype(np.float32)
    indices: dict[str, Callable[[], Any]] = {
        "random indices": lambda: random.integers(0, _TABLE, count),
        "near indices": lambda: random.integers(0, _TABLE // _STRIDE, count),
        "any integers": lambda: random.integers(-(2**62), 2**62, count),
        "ascending integers": lambda: np.arange(count),
        "equal integers": lambda: np.zeros(count),
        "mixed indices": lambda: random.integers(-_TABLE, _TABLE, count),
    }
    return np.asarray(indices[name]()).astype(np.int64)


_FLOAT_NUMBERS = (
    "normal", "subnormal", "small", "small halves", "exponents", "small exponents", "positive exponents", "huge",
    "infinite", "nan", "zeros", "ascending", "descending",
)  # fmt: skip
_NUMBERS = dict.fromkeys(FLOATS, _FLOAT_NUMBERS) | {
    "int64": ("any integers", "ascending integers", "equal integers", "random indices"),
    "bool": ("normal", "zeros"),
}


def keys() -> Iterator[tuple[str, str, tuple[str, ...], bool]]:
    """The key of each price of an operator, with the operator, the dtypes and whether memory is plain."""
    for operator in OPERATORS:
        if operator in FREE or OPERATORS[operator].inputs == 0:
            continue
        for dtypes, plain in product(_dtypes(operator), (True, False)):
            yield key_of(operator, dtypes, plain=plain), operator, dtypes, plain


def cases(operator: str, dtypes: tuple[str, ...], count: int, *, plain: bool) -> Iterator[Case]:
    """Slow inputs of about `count` elements."""
    if operator in ("gather_or", "scatter_drop"):
        yield from _index_cases(operator, dtypes[0], count, plain=plain)
        return
    for fields, operands in _arranged(operator, dtypes, count, plain=plain):
        made = _case(Value(operator, tuple(range(len(operands))), **fields), dtypes, operands)
        for names in _names(dtypes[0], len(operands)) if made is not None else ():
            renamed = tuple(one._replace(numbers=name) for one, name in zip(operands, names, strict=True))
            yield made._replace(operands=renamed)  # type: ignore[union-attr]
    if operator == "cumsum" and not plain:
        yield from _far_cases(operator, dtypes)


def _dtypes(operator: str) -> list[tuple[str, ...]]:
    """The dtypes for which the operator has prices: those that its rule accepts."""
    if operator == "cast":
        return [(one, other) for one in (*FLOATS, "int64", "bool") for other in (*FLOATS, "int64", "bool")]
    dtypes: list[tuple[str, ...]] = [(dtype,) for dtype in (*FLOATS, "int64", "bool")]
    return [one for one in dtypes if any(True for _ in cases(operator, one, 64, plain=True))]


def _arranged(
    operator: str, dtypes: tuple[str, ...], count: int, *, plain: bool
) -> Iterator[tuple[dict[str, Any], tuple[Operand, ...]]]:
    """Fields and operands of elementwise operators, and of those along an axis."""
    fields = OPERATORS[operator].fields
    arity = OPERATORS[operator].inputs or 2
    given: dict[str, Any] = {}
    if operator == "cast":
        given["element"] = _element(dtypes[1])
    if "begin" in fields:
        given |= {"begin": Size(constant=1), "end": Size(constant=1)}
    sorts = operator in SORTS
    types = ["bool" if operator == "where" else dtypes[0], *[dtypes[0]] * (arity - 1)]
    for shapes, axis in _layouts(count, arity, "axis" in fields or sorts, plain=plain):
        if sorts and axis != 1:  # they sort the last axis
            continue
        chosen = given if sorts or "axis" not in fields else given | {"axis": axis}
        operands = tuple(Operand("", dtype, *layout) for dtype, layout in zip(types, shapes, strict=True))
        for k in _largest(operator, operands[0].shape[-1]):
            yield chosen | k, operands


def _largest(operator: str, size: int) -> list[dict[str, Any]]:
    """The k of `top_k`: the slowest is the largest one for which torch keeps a heap, size // 64."""
    if operator != "top_k":
        return [{}]
    return [{"integer": k} for k in sorted({1, max(1, size // 64), min(4096, max(1, size // 2))})]


def _names(dtype: str, arity: int) -> Iterator[tuple[str, ...]]:
    for name in _NUMBERS[dtype]:
        yield (name,) * arity
        if arity == 2 and dtype in FLOATS and name != "normal":
            yield ("normal", name)
            yield (name, "normal")


_Layout = tuple[tuple[int, ...], tuple[int, ...], int]


def _layouts(count: int, arity: int, axes: bool, *, plain: bool) -> Iterator[tuple[list[_Layout], int]]:
    """Sizes, strides and elements of each operand, and an axis."""
    half = max(1, count // 2)
    if plain:
        yield [((count,), (1,), count)] * arity, 1
        return
    far = max(1, MAX_ELEMENTS // _STRIDE)
    yield [((min(count, far),), (_STRIDE,), MAX_ELEMENTS)] * arity, 1
    yield [((count,), (0,), 1)] * arity, 1
    if axes:
        for shape, strides, axis in (
            ((half, 2), (2, 1), 1),
            ((half, 2), (2, 1), 2),
            ((count, 1), (1, 1), 1),
            ((2, half), (half, 1), 2),
        ):
            yield [(shape, strides, math.prod(shape))] * arity, axis
    elif arity > 1:
        # Runs of two elements.
        yield [((half, 2), (1, 0), half), *[((half, 2), (0, 1), 2)] * (arity - 1)], 1


def _index_cases(operator: str, dtype: str, count: int, *, plain: bool) -> Iterator[Case]:
    step = 1 if plain else _STRIDE
    size = min(count, MAX_ELEMENTS // step)
    for name in ("random indices", "near indices", "mixed indices", "any integers", "equal integers"):
        index = Operand(name, "int64", (size,), (step,), MAX_ELEMENTS)
        source = _NUMBERS[dtype][0]
        operands: tuple[Operand, ...] = (Operand(source, dtype, (_TABLE // step,), (step,), _TABLE), index)
        if operator == "scatter_drop":
            operands += (Operand(source, dtype, (size,), (step,), MAX_ELEMENTS),)
        made = _case(Value(operator, tuple(range(len(operands)))), (dtype,), operands)
        if made is not None:
            yield made


def _far_cases(operator: str, dtypes: tuple[str, ...]) -> Iterator[Case]:
    """The first axis of a large matrix, of which a few columns are enough."""
    shape, strides = (_FAR_SIZE, _FAR_COLUMNS), (_FAR_STRIDE, 1)
    operand = Operand(_NUMBERS[dtypes[0]][0], dtypes[0], shape, strides, _FAR_SIZE * _FAR_STRIDE)
    made = _case(Value(operator, (0,), axis=2), dtypes, (operand,))
    if made is not None:
        yield made._replace(is_far=True)


def _case(value: Value, dtypes: tuple[str, ...], operands: tuple[Operand, ...]) -> Case | None:
    """The case, or None if the rule refuses it."""
    types = [Type(_element(one.dtype), tuple(Size(constant=size) for size in one.shape)) for one in operands]
    try:
        result = OPERATORS[value.operator].rule(value, types, Context({}, 0))
    except InvalidProgram:
        return None
    shape = tuple(size.constant for size in result.shape)
    if value.operator == "cast":
        dtype = dtypes[1]
    else:
        dtype = dtypes[0] if result.element is Element.FLOAT32 else str(result.element)
    return Case(value, operands, dtype, shape, units_of(value.operator, [one.shape for one in operands], shape))


def _element(dtype: str) -> Element:
    return _ELEMENTS.get(dtype, Element.FLOAT32)
