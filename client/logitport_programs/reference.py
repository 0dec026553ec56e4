"""The numpy interpreter of programs: the executable form of docs/programs-spec.md. It is simple, not fast.

Each row is computed alone, so that a value has no dimension of rows here. Floats of every type are float32 arrays,
rounded to the values of their type after each operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport.errors import InvalidArgument, ProcessorFailed, RequestsFailed
from logitport_programs.parameters import padded
from logitport_programs.rules import ELEMENTWISE
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.core.history import History
    from logitport_programs.program import Value
    from logitport_programs.types import Type
    from logitport_programs.verifier import Verified

    Array = NDArray[Any]

_DTYPES = ("float32", "float16", "bfloat16")
_NUMPY = {Element.LOGITS: np.float32, Element.FLOAT32: np.float32, Element.INT64: np.int64, Element.BOOL: np.bool_}
_DATA = {Element.FLOAT32: "<f4", Element.INT64: "<i8", Element.BOOL: "?"}


def run(
    verified: Verified,
    logits: Array,
    params: Mapping[str, Sequence[float] | Sequence[Sequence[int]] | Array],
    histories: Sequence[History],
) -> Array:
    """Run a program.

    Args:
        verified: the program.
        logits: [rows, vocab_size], float32, float16, or bfloat16 of ml_dtypes (numpy has none of its own). Not changed.
        params: [rows] numbers or lists of ids for each parameter of the program: from the row's request, or the
            default. Their limits are not checked.
        histories: the history of each row; draft tokens before the row are part of it.

    Returns:
        [rows, vocab_size], of the dtype of the logits.

    Raises:
        InvalidArgument: the logits have another dtype or rank, or not one row for each history.
        InvalidArgument: a parameter does not have one number for each row.
        InvalidArgument: the program needs a larger vocabulary.
        LimitExceeded: a value has too many elements for logits of this width.
        RequestsFailed: a cast to int64 of NaN, an infinity or a number that int64 does not have. It holds a
            `ProcessorFailed` for each row with such a cast, and the result, which leaves these rows unchanged.
    """
    if logits.dtype.name not in _DTYPES or logits.shape[:1] != (len(histories),) or logits.ndim != 2:
        raise InvalidArgument(
            f"logits of dtype {logits.dtype.name} and shape {list(logits.shape)} for {len(histories)} histories; "
            f"a program reads [rows, vocab_size] of {', '.join(_DTYPES)}"
        )
    for parameter in verified.program.parameters:
        if len(params.get(parameter.name, ())) != len(logits):
            raise InvalidArgument(f"parameter {parameter.name!r} must have one number for each of {len(logits)} rows")
    verified.check_width(logits.shape[1])
    result = logits.copy()
    failures: dict[int, ProcessorFailed] = {}
    with np.errstate(all="ignore"):  # IEEE 754: a division by zero and an overflow are results
        for row, history in enumerate(histories):
            numbers = {name: column[row] for name, column in params.items()}
            try:
                result[row] = _run_row(verified, _Row(logits[row], numbers, history, verified.program.window))
            except ProcessorFailed as error:
                failures[row] = error
    if failures:
        raise RequestsFailed(failures, result)
    return result


class _Row(NamedTuple):
    """Inputs of a program for one row."""

    logits: Array
    params: dict[str, Any]
    history: History
    window: int

    @property
    def width(self) -> int:
        return len(self.logits)

    def counts(self, generated_only: bool) -> Array:
        """How often each id is in the history, int64[vocab_size]."""
        ids = self.history.output_token_ids if generated_only else self.history.token_ids
        return np.bincount(ids[(ids >= 0) & (ids < self.width)], minlength=self.width).astype(np.int64)


class _Operation(NamedTuple):
    """One operator at work.

    Attributes:
        value: its fields.
        inputs: its inputs.
        type: the type of the result.
        shape: the shape of the result, without rows.
        row: the inputs of the program.
    """

    value: Value
    inputs: list[Array]
    type: Type
    shape: tuple[int, ...]
    row: _Row

    @property
    def axis(self) -> int:
        return -self.value.axis

    def size(self, name: str) -> int:
        return int(getattr(self.value, name).of(self.row.width, self.row.window))

    def number(self) -> Array:
        """The number that the value has, of the element type of the result."""
        field = self.value.number if self.type.element.is_float else self.value.integer
        return self.rounded(np.array(field, _NUMPY[self.type.element]))

    def rounded(self, result: Array) -> Array:
        """The result in the representation of its element type."""
        if self.type.element is Element.LOGITS:
            result = result.astype(np.float32).astype(self.row.logits.dtype)
        return result.astype(_NUMPY[self.type.element])


def _run_row(verified: Verified, read: _Row) -> Array:
    values: list[Array] = []
    for position, (value, kind) in enumerate(zip(verified.program.values, verified.types, strict=True)):
        shape = verified.shape(position, 1, read.width)[kind.has_rows :]
        operation = _Operation(value, [values[one] for one in value.inputs], kind, shape, read)
        try:
            result = operation.rounded(_OPERATORS[value.operator](operation))
        except _CastError as error:
            raise ProcessorFailed(
                f"value {position} of program {verified.program.name!r}: {error.args[0]} has no int64: "
                "limit the values before the cast"
            ) from None
        assert result.shape == shape, (value, result.shape, shape)  # noqa: S101 - a defect of rules or interpreter
        values.append(result)
    return values[-1].astype(read.logits.dtype)


class _CastError(Exception):
    """A float without an int64."""


def _parameter(operation: _Operation) -> Array:
    given = operation.row.params[operation.value.parameter]
    return padded([given], *operation.shape)[0] if operation.shape else np.array(given)


def _history(operation: _Operation) -> Array:
    ids = operation.row.history.token_ids[-operation.row.window :]
    return np.pad(ids.astype(np.int64), (operation.row.window - len(ids), 0), constant_values=-1)


def _constant(operation: _Operation) -> Array:
    return np.frombuffer(operation.value.data, _DATA[operation.type.element]).reshape(operation.shape)


def _cast(operation: _Operation) -> Array:
    (source,) = operation.inputs
    if operation.type.element is Element.INT64 and source.dtype == np.float32:
        outside = source[~((source >= -(2.0**63)) & (source < 2.0**63))]
        if outside.size:
            raise _CastError(outside[0])
    return source.astype(_NUMPY[operation.type.element])  # to int64 truncates; to bool is false for zeros only


def _elementwise(function: Callable[..., Array]) -> Callable[[_Operation], Array]:
    return lambda operation: function(*operation.inputs)


def _reduction(function: Callable[..., Array]) -> Callable[[_Operation], Array]:
    return lambda operation: function(operation.inputs[0], axis=operation.axis, keepdims=operation.value.flag)


def _std(operation: _Operation) -> Array:
    (source,) = operation.inputs
    deviation = source - np.mean(source, axis=operation.axis, keepdims=True)
    total = np.sum(deviation * deviation, axis=operation.axis, keepdims=operation.value.flag)
    variance: Array = total / np.float32(source.shape[operation.axis] - operation.value.integer)
    return np.sqrt(variance)


def _softmax(operation: _Operation) -> Array:
    (source,) = operation.inputs
    powers = np.exp(source - np.max(source, axis=operation.axis, keepdims=True))
    result: Array = powers / np.sum(powers, axis=operation.axis, keepdims=True)
    return result


def _log_softmax(operation: _Operation) -> Array:
    (source,) = operation.inputs
    shifted = source - np.max(source, axis=operation.axis, keepdims=True)
    result: Array = shifted - np.log(np.sum(np.exp(shifted), axis=operation.axis, keepdims=True))
    return result


def _order(source: Array, *, descending: bool) -> Array:
    """Indices that sort the last axis; equal elements keep their order, and NaN is the largest."""
    if source.dtype == np.float32:
        # The integers of the bits have the order of the floats. To sort them with their indices takes a fifth of the
        # time of a stable sort.
        bits = (source + np.float32(0)).view(np.int32)  # -0 + 0 is 0
        rank = np.where(np.isnan(source), np.int32(0x7FFFFFFF), bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    else:
        rank = np.unique(source, return_inverse=True)[1].reshape(source.shape).astype(np.int64)
    index = np.arange(source.shape[-1])
    return np.sort((~rank if descending else rank) << 32 | index, axis=-1) & 0xFFFFFFFF


def _slice(operation: _Operation) -> Array:
    (source,) = operation.inputs
    return np.take(source, np.arange(operation.size("begin"), operation.size("end")), axis=operation.axis)


def _pad(operation: _Operation) -> Array:
    (source,) = operation.inputs
    widths = [(0, 0)] * source.ndim
    widths[operation.axis] = (operation.size("begin"), operation.size("end"))
    return np.pad(source, widths, constant_values=operation.number())


def _gather_or(operation: _Operation) -> Array:
    source, index = operation.inputs
    result = np.full(index.shape, operation.number())
    inside = (index >= 0) & (index < len(source))
    result[inside] = source[index[inside]]
    return result


def _scatter_drop(operation: _Operation) -> Array:
    base, index, added = operation.inputs
    result = base.copy()
    inside = (index >= 0) & (index < len(base))
    result[index[inside]] = np.broadcast_to(added, index.shape)[inside]  # the last one of an index remains
    return result


_NUMPY_NAMES = {"negate": "negative", **{name: f"logical_{name}" for name in ("not", "and", "or", "xor")}}
_OPERATORS: Mapping[str, Callable[[_Operation], Array]] = {
    "logits": lambda operation: operation.row.logits,
    "parameter": _parameter,
    "history": _history,
    "history_length": lambda operation: np.array(min(len(operation.row.history), operation.row.window)),
    "token_mask": lambda operation: operation.row.counts(operation.value.flag) > 0,
    "token_counts": lambda operation: operation.row.counts(operation.value.flag),
    "constant": _constant,
    "full": lambda operation: np.full(operation.shape, operation.number()),
    "arange": lambda operation: np.arange(operation.shape[0]),
    "cast": _cast,
    "is_nan": _elementwise(np.isnan),
    "where": _elementwise(np.where),
    "sum": _reduction(np.sum),
    "mean": _reduction(np.mean),
    "std": _std,
    "amax": _reduction(np.max),
    "amin": _reduction(np.min),
    "argmax": _reduction(np.argmax),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "cumsum": lambda operation: np.cumsum(operation.inputs[0], axis=operation.axis),
    "argsort": lambda operation: _order(operation.inputs[0], descending=operation.value.flag),
    "top_k": lambda operation: _order(operation.inputs[0], descending=True)[..., : operation.value.integer],
    "expand": lambda operation: np.broadcast_to(operation.inputs[0], operation.shape),
    "unsqueeze": lambda operation: np.expand_dims(operation.inputs[0], operation.axis),
    "squeeze": lambda operation: np.squeeze(operation.inputs[0], operation.axis),
    "slice": _slice,
    "pad": _pad,
    "concatenate": lambda operation: np.concatenate(operation.inputs, axis=operation.axis),
    "gather_or": _gather_or,
    "scatter_drop": _scatter_drop,
    "sigmoid": _elementwise(lambda source: np.float32(1) / (np.float32(1) + np.exp(-source))),
    **{name: _elementwise(getattr(np, _NUMPY_NAMES.get(name, name))) for name in ELEMENTWISE if name != "sigmoid"},
}
