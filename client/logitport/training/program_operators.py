"""The operators of programs as differentiable functions of torch tensors. None of them writes to its inputs.

Comparisons, indices, and casts to int64 and bool carry no gradient. `floor` and `ceil` have no useful derivative: a
gradient that would flow through them raises InvalidArgument.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from logitport.errors import InvalidArgument, ProcessorFailed
from logitport_programs.rules import ELEMENTWISE
from logitport_programs.runtime.kernels import ALONG_AN_AXIS, REDUCTIONS, TORCH_NAMES, VIEWS, KernelCall, Spec, fill_of
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from logitport_programs.program import Value
    from logitport_programs.types import Type

_INT64_LIMIT = 2.0**63


class Operation(NamedTuple):
    """One operator at work. Its inputs have the axes that broadcasting needs.

    Attributes:
        value: its fields.
        inputs: its inputs.
        type: the type of the result.
        shape: the shape of the result, with the rows if it has them.
        begin, end: its sizes as numbers.
        dtype: torch's dtype of the result.
        device: of the result.
    """

    value: Value
    inputs: Sequence[torch.Tensor]
    type: Type
    shape: tuple[int, ...]
    begin: int
    end: int
    dtype: torch.dtype
    device: torch.device

    @property
    def axis(self) -> int:
        """The axis, counted from the end."""
        return -self.value.axis

    @property
    def number(self) -> float:
        """The number of `full`, of padding, or of elements that an index does not select."""
        return fill_of(self.value, torch.float32 if self.type.element.is_float else self.dtype)


class _Elementwise(torch.autograd.Function):
    """An operator of single elements, of which the gradient is 0 wherever the result's gradient is 0.

    Denied ids have the logit -inf, and its derivatives may be infinite or NaN: autograd would multiply them by 0.
    """

    @staticmethod
    def forward(ctx: Any, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        with torch.enable_grad():
            spread = [
                each.expand(gradient.shape).detach().requires_grad_(need)
                for each, need in zip(inputs, needed, strict=True)
            ]
            result = ctx.function(*spread)
        chosen = [each for each in spread if each.requires_grad]
        found = iter(torch.autograd.grad(result, chosen, torch.ones_like(gradient)))
        zero = gradient == 0
        return None, *(
            (next(found) * gradient).masked_fill_(zero, 0).sum_to_size(each.shape) if need else None
            for each, need in zip(inputs, needed, strict=True)
        )


class _NotDifferentiable(torch.autograd.Function):
    """An operator through which no gradient flows."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., torch.Tensor], name: str, source: torch.Tensor) -> torch.Tensor:
        ctx.name = name
        return function(source)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if bool((gradient != 0).any()):
            raise InvalidArgument(
                f"the operator {ctx.name!r} is not differentiable here: write the program so that only comparisons "
                "and indices depend on its result"
            )
        return None, None, torch.zeros_like(gradient)


def _guarded(function: Callable[..., torch.Tensor]) -> Callable[[Operation], torch.Tensor]:
    def run(operation: Operation) -> torch.Tensor:
        inputs = operation.inputs
        if inputs[0].is_floating_point():
            return cast("torch.Tensor", _Elementwise.apply(function, *inputs))  # type: ignore[no-untyped-call,unused-ignore]
        return function(*inputs)

    return run


def _plain(function: Callable[..., torch.Tensor]) -> Callable[[Operation], torch.Tensor]:
    return lambda operation: function(*operation.inputs)


def _stepped(function: Callable[..., torch.Tensor]) -> Callable[[Operation], torch.Tensor]:
    return lambda operation: cast(
        "torch.Tensor",
        _NotDifferentiable.apply(function, operation.value.operator, operation.inputs[0]),  # type: ignore[no-untyped-call,unused-ignore]
    )


def _reduction(function: Callable[..., torch.Tensor]) -> Callable[[Operation], torch.Tensor]:
    return lambda operation: function(operation.inputs[0], dim=operation.axis, keepdim=operation.value.flag)


def _along(function: Callable[..., torch.Tensor]) -> Callable[[Operation], torch.Tensor]:
    return lambda operation: function(operation.inputs[0], dim=operation.axis)


def _view(name: str) -> Callable[[Operation], torch.Tensor]:
    def run(operation: Operation) -> torch.Tensor:
        call = KernelCall(operation.value, operation.begin, operation.end)
        return VIEWS[name](call, operation.inputs[0], Spec(operation.shape, operation.dtype))

    return run


def _constant(operation: Operation) -> torch.Tensor:
    dtype = {Element.FLOAT32: torch.float32, Element.INT64: torch.int64, Element.BOOL: torch.bool}
    data = torch.frombuffer(bytearray(operation.value.data), dtype=dtype[operation.type.element])
    return data.view(operation.shape).to(operation.device, operation.dtype)


def _full(operation: Operation) -> torch.Tensor:
    number = torch.tensor(operation.number, dtype=operation.dtype, device=operation.device)
    return number.expand(operation.shape)


def _cast(operation: Operation) -> torch.Tensor:
    (source,) = operation.inputs
    if operation.dtype is torch.int64 and source.is_floating_point():
        fits = (source >= -_INT64_LIMIT) & (source < _INT64_LIMIT)
        if not bool(fits.all()):
            raise ProcessorFailed("a number that int64 cannot hold is cast to it: limit the number first")
    return source.to(operation.dtype)


def _std(operation: Operation) -> torch.Tensor:
    (source,) = operation.inputs
    keep = operation.value.flag
    count = source.shape[operation.axis] - operation.value.integer
    if not count:
        return source.sum(dim=operation.axis, keepdim=keep) * math.nan
    return torch.std(source, dim=operation.axis, correction=operation.value.integer, keepdim=keep)


def _argsort(operation: Operation) -> torch.Tensor:
    source = operation.inputs[0].detach()
    return torch.sort(source, dim=-1, descending=operation.value.flag, stable=True).indices


def _top_k(operation: Operation) -> torch.Tensor:
    source = operation.inputs[0].detach()
    if source.dtype is torch.bool:
        source = source.view(torch.uint8)
    return torch.sort(source, dim=-1, descending=True, stable=True).indices[..., : operation.value.integer]


def _pad(operation: Operation) -> torch.Tensor:
    (source,) = operation.inputs
    parts = []
    for size in (operation.begin, operation.end):
        shape = list(source.shape)
        shape[operation.axis] = size
        parts.append(torch.full(shape, operation.number, dtype=source.dtype, device=source.device))
    return torch.cat([parts[0], source, parts[1]], dim=operation.axis)


def _concatenate(operation: Operation) -> torch.Tensor:
    axis, rows = operation.axis, operation.type.has_rows
    parts = []
    for each in operation.inputs:
        shape = list(operation.shape)
        shape[axis] = each.shape[axis]
        parts.append(each.expand(shape) if rows else each)
    return torch.cat(parts, dim=axis)


def _gather_or(operation: Operation) -> torch.Tensor:
    source, index = operation.inputs
    if len(operation.shape) > 1:
        source, index = source.expand(operation.shape[0], -1), index.expand(operation.shape[0], -1)
    size = source.shape[-1]
    inside = (index >= 0) & (index < size)
    return source.gather(-1, index.clamp(0, size - 1)).masked_fill(~inside, operation.number)


def _scatter_drop(operation: Operation) -> torch.Tensor:
    base, index, added = operation.inputs
    base = base.expand(operation.shape)
    shape = (*operation.shape[:-1], index.shape[-1])
    index, added = index.expand(shape), added.expand(shape)
    # The position of the element that each element of the base gets: the last one with its index. torch.scatter has no
    # order among equal indices, and would give each of them a gradient.
    inside = (index >= 0) & (index < base.shape[-1])
    positions = torch.arange(shape[-1], device=index.device).expand(shape).masked_fill(~inside, -1)
    winner = torch.full(operation.shape, -1, device=index.device)
    winner = winner.scatter_reduce(-1, index.clamp(0, base.shape[-1] - 1), positions, "amax")
    return torch.where(winner >= 0, added.gather(-1, winner.clamp(min=0)), base)


def _sqrt(source: torch.Tensor) -> torch.Tensor:
    # In float32, the library that torch calls does not round as IEEE 754 requires.
    return source.double().sqrt().to(source.dtype)


# Their derivatives may be infinite or NaN where a logit is -inf.
_GUARDED = frozenset({"exp", "log", "sqrt", "sigmoid", "tanh", "absolute", "multiply", "divide", "power"})
_STEPPED = frozenset({"floor", "ceil"})


def _elementwise(name: str) -> Callable[[Operation], torch.Tensor]:
    function = _sqrt if name == "sqrt" else getattr(torch, TORCH_NAMES.get(name, name))
    if name in _STEPPED:
        return _stepped(function)
    return _guarded(function) if name in _GUARDED else _plain(function)


# All but those that read the rows: `logits`, `parameter`, and `HISTORY_OPERATORS`.
DIFFERENTIABLE: Mapping[str, Callable[[Operation], torch.Tensor]] = {
    **{name: _elementwise(name) for name in ELEMENTWISE},
    **{name: _reduction(function) for name, function in REDUCTIONS.items()},
    **{name: _along(function) for name, function in ALONG_AN_AXIS.items()},
    "constant": _constant,
    "full": _full,
    "arange": lambda operation: torch.arange(operation.shape[0], device=operation.device),
    **{name: _view(name) for name in VIEWS},
    "cast": _cast,
    "is_nan": _plain(torch.isnan),
    "where": _plain(torch.where),
    "std": _std,
    "argsort": _argsort,
    "top_k": _top_k,
    "pad": _pad,
    "concatenate": _concatenate,
    "gather_or": _gather_or,
    "scatter_drop": _scatter_drop,
}
