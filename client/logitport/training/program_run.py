"""Runs a program as a differentiable function of its logits. `logitport_programs.reference` states the results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from logitport.training.program_operators import DIFFERENTIABLE, Operation
from logitport_programs.parameters import Columns
from logitport_programs.rules import ELEMENTWISE
from logitport_programs.runtime.kernels import aligned
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_programs.parameters import Checked
    from logitport_programs.program import Value
    from logitport_programs.types import Type
    from logitport_programs.verifier import Verified

_BROADCASTING = frozenset({*ELEMENTWISE, "where", "scatter_drop", "expand"})


class ReadIds(NamedTuple):
    """The history of a row: the first ids of a sequence.

    Attributes:
        ids: prompt and output, int64[n], on the device of the logits.
        prompt_length: number of ids of the prompt.
        length: number of ids that the row sees.
    """

    ids: torch.Tensor
    prompt_length: int
    length: int


def run_program(
    verified: Verified, logits: torch.Tensor, params: Sequence[tuple[Checked, ...]], histories: Sequence[ReadIds]
) -> torch.Tensor:
    """Run a program on logits, float32 or float64 [rows, vocab_size], in their dtype. Returns [rows, vocab_size].

    Args:
        verified: the program.
        logits: unchanged. May require gradients.
        params: the checked parameters of each row.
        histories: the history of each row.

    Raises:
        ProcessorFailed: a cast to int64 of NaN, an infinity, or a number that int64 does not have.
    """
    rows, width = logits.shape
    columns = Columns(verified, params)
    values: list[torch.Tensor | None] = []
    last_use = {source: at for at, value in enumerate(verified.program.values) for source in value.inputs}
    for position, (value, kind) in enumerate(zip(verified.program.values, verified.types, strict=True)):
        if value.operator in DIFFERENTIABLE:
            shape = verified.shape(position, rows, width)
            inputs = [values[source] for source in value.inputs]
            kinds = [verified.types[source] for source in value.inputs]
            result = _compute(verified, value, kind, shape, _aligned(value, kind, inputs, kinds), logits)
        elif value.operator == "logits":
            result = logits
        elif value.operator == "parameter":
            result = torch.as_tensor(columns.values[value.parameter], device=logits.device)
            result = _parameter(result, _dtype(kind, logits))
        else:
            result = _of_history(value, histories, verified.program.window, logits)
        values.append(result)
        for source in value.inputs:
            if last_use[source] == position:
                values[source] = None
    last = values[-1]
    assert last is not None  # noqa: S101 - nothing uses the last value
    return last


def bytes_of_row(verified: Verified, vocab_size: int) -> int:
    """Return an upper bound of the memory that autograd keeps for a row, if floats have 4 bytes."""
    sizes = {Element.LOGITS: 4, Element.FLOAT32: 4, Element.INT64: 8, Element.BOOL: 1}
    total = 0
    for position, kind in enumerate(verified.types):
        total += math.prod(verified.shape(position, 1, vocab_size)) * sizes[kind.element]
    return 2 * total  # the gradients of some values live beside the values


def _compute(
    verified: Verified,
    value: Value,
    kind: Type,
    shape: tuple[int, ...],
    inputs: Sequence[torch.Tensor],
    logits: torch.Tensor,
) -> torch.Tensor:
    width, window = logits.shape[1], verified.program.window
    begin, end = (0 if size is None else size.of(width, window) for size in (value.begin, value.end))
    operation = Operation(value, inputs, kind, shape, begin, end, _dtype(kind, logits), logits.device)
    return DIFFERENTIABLE[value.operator](operation)


def _dtype(kind: Type, logits: torch.Tensor) -> torch.dtype:
    if kind.element.is_float:
        return logits.dtype
    return torch.int64 if kind.element is Element.INT64 else torch.bool


def _parameter(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values.float().to(dtype) if dtype.is_floating_point else values.to(dtype)


def _aligned(
    value: Value, kind: Type, inputs: Sequence[torch.Tensor | None], kinds: Sequence[Type]
) -> list[torch.Tensor]:
    """Insert the axes that broadcasting needs behind the rows of the inputs."""
    present = [each for each in inputs if each is not None]
    if value.operator not in _BROADCASTING:
        return present
    rank = max(len(each.shape) for each in (kind, *kinds))
    return [
        aligned(each, rank - len(one.shape)) if one.has_rows else each for each, one in zip(present, kinds, strict=True)
    ]


def _of_history(value: Value, histories: Sequence[ReadIds], window: int, logits: torch.Tensor) -> torch.Tensor:
    """Return what an operator reads of the rows' histories."""
    if value.operator == "history_length":
        return torch.tensor([min(each.length, window) for each in histories], device=logits.device)
    if value.operator == "history":
        result = torch.full((len(histories), window), -1, device=logits.device)
        for row, each in zip(result, histories, strict=True):
            shown = each.ids[max(0, each.length - window) : each.length]
            row[window - len(shown) :] = shown
        return result
    counts = _counts(histories, logits, generated=value.flag)
    return counts > 0 if value.operator == "token_mask" else counts


def _counts(histories: Sequence[ReadIds], logits: torch.Tensor, *, generated: bool) -> torch.Tensor:
    """Return how often each id is in each history, int64[rows, vocab_size]."""
    counts = torch.zeros(logits.shape, dtype=torch.int64, device=logits.device)
    for row, each in enumerate(histories):
        begin = each.prompt_length if generated else 0
        previous = histories[row - 1] if row else None
        if previous is not None and previous.ids is each.ids and previous.length <= each.length:
            counts[row] = counts[row - 1]
            begin = previous.length
        added = each.ids[begin : each.length]
        added = added[added < logits.shape[1]]
        counts[row].scatter_add_(0, added, torch.ones_like(added))
    return counts
