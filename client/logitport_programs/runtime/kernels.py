"""One function for each operator. Results go to memory of the caller.

An elementwise kernel may get one of its inputs as its output. Inputs are aligned for broadcasting by the caller.
Kernels that read the results of a comparison on the host do so on CPUs only, because a GPU would have to be waited for.
"""

# ruff: noqa: ARG001, ARG005 - all kernels have one signature

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from logitport_programs.rules import ELEMENTWISE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_programs.program import Value


# Rows up to this size are sorted together. One by one, each would take 20 us besides its work: 40 s for 2 million rows.
_MAX_SORTED_WIDTH = 4096


class Spec(NamedTuple):
    """Shape, with the rows if the value has them, and dtype of a value."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """The size of the value."""
        return math.prod(self.shape) * self.dtype.itemsize


class KernelCall(NamedTuple):
    """The description of a value, and its sizes as numbers.

    Attributes:
        value: the value.
        begin, end: its sizes.
    """

    value: Value
    begin: int = 0
    end: int = 0


if TYPE_CHECKING:
    Inputs = Sequence[torch.Tensor]
    # Returns None, or which elements have no value in the result's type: bool of the result's shape. These flags may
    # be in the scratch memory, and are valid only until the next kernel runs.
    Run = Callable[[KernelCall, Inputs, torch.Tensor, Inputs], torch.Tensor | None]
    Scratch = Callable[[KernelCall, Sequence[Spec], Spec], tuple[Spec, ...]]
    Bytes = Callable[[KernelCall, Sequence[Spec], Spec], int]


def _widened_bytes(spec: Spec) -> int:
    """Torch gathers, scatters and averages 16-bit floats in a copy in float32."""
    return 4 * math.prod(spec.shape) if spec.dtype in (torch.float16, torch.bfloat16) else 0


class Kernel(NamedTuple):
    """How an operator is run.

    Attributes:
        run: gets the value's description, the inputs, the output, and scratch memory.
        elementwise: whether an element of the result depends on the elements at its index alone.
        broadcasts: whether inputs of fewer axes are aligned.
        scratch: the scratch memory that it needs.
        allocated: at most how many bytes it and torch allocate while it runs.
        copies_views: whether torch copies an input that is not contiguous, and allocates nothing else.
    """

    run: Run
    elementwise: bool = False
    broadcasts: bool = False
    scratch: Scratch = lambda call, inputs, out: ()
    allocated: Bytes = lambda call, inputs, out: 0
    copies_views: bool = False


def _elementwise(function: Callable[..., torch.Tensor]) -> Kernel:
    def run(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
        function(*inputs, out=out)

    return Kernel(run, elementwise=True, broadcasts=True)


def _sqrt(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    (source,) = inputs
    if source.device.type == "cpu" and source.dtype is torch.float32:
        with np.errstate(invalid="ignore"):  # MKL, which torch calls, does not round as IEEE 754 requires
            np.sqrt(source.numpy(), out=out.numpy())
    else:
        torch.sqrt(source, out=out)


def _where(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    condition, chosen, other = inputs
    if other is out and chosen.dim() == 0:
        out.masked_fill_(condition, chosen)
    else:
        torch.where(condition, chosen, other, out=out)


def _cast(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> torch.Tensor | None:
    (source,) = inputs
    out.copy_(source)
    if not scratch:
        return None
    fits, below = scratch
    limit = math.inf if source.dtype is torch.float16 else 2.0**63
    # -2**63 fits; the next smaller float32 or bfloat16 is lower by more than 1.
    (torch.gt if math.isinf(limit) else torch.ge)(source, -limit, out=fits)
    fits &= torch.lt(source, limit, out=below)
    if source.device.type == "cpu" and fits.all():
        return None
    unfit = torch.logical_not(fits, out=fits)
    out.masked_fill_(unfit, 0)
    return unfit


def _cast_scratch(call: KernelCall, inputs: Sequence[Spec], out: Spec) -> tuple[Spec, ...]:
    if out.dtype is not torch.int64 or not inputs[0].dtype.is_floating_point:
        return ()
    return (Spec(out.shape, torch.bool),) * 2


def _reduction(function: Callable[..., torch.Tensor]) -> Kernel:
    def run(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
        function(inputs[0], dim=-call.value.axis, keepdim=call.value.flag, out=out)

    return Kernel(run)


def _std(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    if inputs[0].shape[-call.value.axis] <= call.value.integer:
        out.fill_(math.nan)  # torch would warn of 0 / 0
    else:
        torch.std(inputs[0], dim=-call.value.axis, correction=call.value.integer, keepdim=call.value.flag, out=out)


def _along(function: Callable[..., torch.Tensor]) -> Kernel:
    def run(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
        function(inputs[0], dim=-call.value.axis, out=out)

    return Kernel(run)


def _argsort(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    torch.sort(inputs[0], dim=-1, descending=call.value.flag, stable=True, out=(scratch[0], out))


def _top_k(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    source, k = inputs[0], call.value.integer
    if source.dtype is torch.bool:
        source = source.view(torch.uint8)
    if source.device.type != "cpu":
        out.copy_(torch.sort(source, dim=-1, descending=True, stable=True).indices[..., :k])
        return
    width = source.shape[-1]
    largest = torch.topk(source, min(k + 1, width), dim=-1)
    # torch.topk has no order among equal elements.
    ascending = largest.indices[..., :k].sort(dim=-1).values
    order = source.gather(-1, ascending).sort(dim=-1, descending=True, stable=True).indices
    torch.gather(ascending, -1, order, out=out)
    if width > k:
        last, following = largest.values[..., k - 1], largest.values[..., k]
        undecided = (last == following) | (last.isnan() & following.isnan())
        if not undecided.any():
            return
        rows, results = source.reshape(-1, width), out.view(-1, k)
        if width <= _MAX_SORTED_WIDTH:
            tied = undecided.flatten().nonzero().flatten()
            results[tied] = torch.sort(rows[tied], dim=-1, descending=True, stable=True).indices[:, :k]
            return
        for row in undecided.flatten().nonzero().flatten().tolist():
            results[row] = _first_largest(rows[row], last.flatten()[row], k)


def _top_k_bytes(call: KernelCall, inputs: Sequence[Spec], out: Spec) -> int:
    source, size = inputs[0], inputs[0].dtype.itemsize
    width = source.shape[-1]
    slices = math.prod(source.shape[:-1])
    # The largest ones, and their indices, sorted twice.
    chosen = slices * (call.value.integer + 1) * (3 * size + 40)
    # Rows that are not decided: together if they are short, else one by one.
    sorted_rows = slices if width <= _MAX_SORTED_WIDTH else 1
    return 2 * source.bytes + _widened_bytes(source) + chosen + sorted_rows * width * (2 * size + 32)


def _first_largest(row: torch.Tensor, least: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest elements of one row, the first ones of those that are equal to `least`."""
    candidates = ((row >= least) | row.isnan()).nonzero().flatten()
    order = row[candidates].sort(descending=True, stable=True).indices[:k]
    return candidates[order]


def _pad(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    source = inputs[0]
    dim, begin, size = -call.value.axis, call.begin, source.shape[-call.value.axis]
    number = fill_of(call.value, out.dtype)
    out.narrow(dim, 0, begin).fill_(number)
    out.narrow(dim, begin, size).copy_(source)
    out.narrow(dim, begin + size, out.shape[dim] - begin - size).fill_(number)


def _concatenate(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    begin = 0
    for part in inputs:
        size = part.shape[-call.value.axis]
        out.narrow(-call.value.axis, begin, size).copy_(part)
        begin += size


def _gather_or(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    source, index = inputs
    size = source.shape[-1]
    clamped, outside, high = scratch
    all_inside = _all_inside(index, size)
    if not all_inside:
        torch.lt(index, 0, out=outside)
        outside |= torch.ge(index, size, out=high)
        index = torch.clamp(index, 0, size - 1, out=clamped)
    if out.dim() > 1:
        source, index = source.expand(out.shape[0], -1), index.expand(out.shape[0], -1)
    torch.gather(source, -1, index, out=out)
    if not all_inside:
        out.masked_fill_(outside, fill_of(call.value, out.dtype))


def _gather_scratch(call: KernelCall, inputs: Sequence[Spec], out: Spec) -> tuple[Spec, ...]:
    shape = inputs[1].shape
    return Spec(shape, torch.int64), Spec(shape, torch.bool), Spec(shape, torch.bool)


def _scatter_drop(call: KernelCall, inputs: Inputs, out: torch.Tensor, scratch: Inputs) -> None:
    base, index, values = inputs
    if base is not out:
        out.copy_(base)
    shape = (*out.shape[:-1], index.shape[-1])
    index = index.expand(shape)
    values = values.expand(shape)
    if not _all_inside(index, out.shape[-1]):
        index, values = _without_outside(out, index, values)
    out.scatter_(-1, index, values)


def _without_outside(out: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace the elements outside by copies of the last one inside, which is the one that stays in any case.

    A row without an element inside writes its first element, unchanged.
    """
    inside = (index >= 0) & (index < out.shape[-1])
    positions = torch.arange(index.shape[-1], device=index.device)
    last = torch.where(inside, positions, -1).amax(dim=-1, keepdim=True)
    has_any, last = last >= 0, last.clamp_(min=0)
    last_index = torch.where(has_any, index.gather(-1, last), 0)
    last_value = torch.where(has_any, values.gather(-1, last), out[..., :1])
    return torch.where(inside, index, last_index), torch.where(inside, values, last_value)


def _scatter_bytes(call: KernelCall, inputs: Sequence[Spec], out: Spec) -> int:
    rows = out.shape[0] if len(out.shape) > 1 else 1
    replaced = rows * inputs[1].shape[-1] * (24 + 2 * out.dtype.itemsize)  # indices and elements without those outside
    return _widened_bytes(out) + replaced


def _all_inside(index: torch.Tensor, size: int) -> bool:
    if index.device.type != "cpu":
        return False
    # One pass, without torch's threads: negative ids are large without a sign.
    return int(index.numpy().view(np.uint64).max()) < size


def fill_of(value: Value, dtype: torch.dtype) -> float:
    """The number of `full`, of padding, or of elements that an index does not select, rounded to the dtype."""
    if not dtype.is_floating_point:
        return value.integer
    return torch.tensor(value.number, dtype=torch.float64).to(dtype).item()


TORCH_NAMES = {"not": "logical_not", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
TORCH_NAMES |= {"negate": "neg", "power": "pow", "equal": "eq"}
# Torch's functions along an axis: those that remove it, or keep it with the size 1, and those that keep it.
REDUCTIONS = {name: getattr(torch, name) for name in ("amax", "amin", "sum", "mean", "argmax")}
ALONG_AN_AXIS = {name: getattr(torch, name) for name in ("softmax", "log_softmax", "cumsum")}
KERNELS: dict[str, Kernel] = {
    **{name: _elementwise(getattr(torch, TORCH_NAMES.get(name, name))) for name in ELEMENTWISE},
    **{name: _reduction(function) for name, function in REDUCTIONS.items()},
    **{name: _along(function) for name, function in ALONG_AN_AXIS.items()},
    "sqrt": Kernel(_sqrt, elementwise=True),
    "cast": Kernel(_cast, elementwise=True, scratch=_cast_scratch),
    "is_nan": _elementwise(lambda source, out: torch.ne(source, source, out=out)),
    "where": Kernel(_where, elementwise=True, broadcasts=True),
    "std": Kernel(_std),
    "argsort": Kernel(
        _argsort,
        scratch=lambda call, inputs, out: (Spec(out.shape, inputs[0].dtype),),
        allocated=lambda call, inputs, out: inputs[0].bytes + out.bytes,
    ),
    "top_k": Kernel(_top_k, allocated=_top_k_bytes),
    "pad": Kernel(_pad),
    "concatenate": Kernel(_concatenate),
    "gather_or": Kernel(
        _gather_or, scratch=_gather_scratch, allocated=lambda call, inputs, out: _widened_bytes(inputs[0])
    ),
    "scatter_drop": Kernel(_scatter_drop, broadcasts=True, allocated=_scatter_bytes),
    "mean": _reduction(REDUCTIONS["mean"])._replace(
        allocated=lambda call, inputs, out: _widened_bytes(inputs[0]) + 4 * math.prod(out.shape)
    ),
    **{name: _along(ALONG_AN_AXIS[name])._replace(copies_views=True) for name in ("softmax", "log_softmax")},
}


# Results without memory of their own. A cast is one if the dtypes are equal.
VIEWS: dict[str, Callable[[KernelCall, torch.Tensor, Spec], torch.Tensor]] = {
    "unsqueeze": lambda call, source, _: source.unsqueeze(-call.value.axis),
    "squeeze": lambda call, source, _: source.squeeze(-call.value.axis),
    "slice": lambda call, source, _: source.narrow(-call.value.axis, call.begin, call.end - call.begin),
    "expand": lambda call, source, out: source.expand(out.shape),
    "cast": lambda call, source, _: source,
}


def aligned(source: torch.Tensor, missing: int) -> torch.Tensor:
    """Insert axes of size 1 behind the rows."""
    return source.view(source.shape[0], *(1,) * missing, *source.shape[1:]) if missing else source
