"""Runs programs on rows of an engine's logits, in place."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from logitport.core.tensors import (
    check_gradient,
    check_matrix,
    datatype_of,
    even_span,
    put_rows,
    rows_with_nan,
    take_rows,
)
from logitport.errors import InvalidArgument, ProcessorFailed
from logitport.system.bounded import BoundedTable
from logitport_programs.parameters import Columns
from logitport_programs.runtime import history_values
from logitport_programs.runtime.arena import Arena
from logitport_programs.runtime.kernels import KERNELS, VIEWS, Spec, aligned, fill_of
from logitport_programs.runtime.parts import are_worthwhile, divided, even_parts
from logitport_programs.runtime.run_plan import DEFAULT_MAX_BYTES, SOURCES, VIEW, Plan, make_plan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from logitport_programs.program import Value
    from logitport_programs.request_tokens import RequestTokens
    from logitport_programs.runtime.run_plan import Step
    from logitport_programs.verifier import Verified

_MAX_PLANS = 64


class _Part(NamedTuple):
    """Rows that run at once.

    Attributes:
        begin, end: their positions among the selected rows.
        span: the rows, if they run in place; None if they are copied there and back.
    """

    begin: int
    end: int
    span: slice | None


class _Bound:
    """A plan with its tensors, valid until the arena grows."""

    def __init__(self, plan: Plan, arena: Arena, device: torch.device) -> None:
        self.plan = plan
        self.values: list[Any] = [None] * len(plan.verified.program.values)
        self.numbers: dict[int, torch.Tensor] = {}
        self.scratch = [[arena.view(offset, *spec) for offset, spec in step.scratch] for step in plan.steps]
        self.outputs = [arena.view(step.offset, *step.spec) if step.offset >= 0 else None for step in plan.steps]
        self.copy: torch.Tensor | None = None
        for step in plan.constants:
            self.values[step.position] = self._constant(step, device)

    def _constant(self, step: Step, device: torch.device) -> torch.Tensor:
        value, spec = step.call.value, step.spec
        if value.operator == "full":
            number = torch.tensor(fill_of(value, spec.dtype), dtype=spec.dtype, device=device)
            self.numbers[step.position] = number
            return number.expand(spec.shape)
        if value.operator == "arange":
            return torch.arange(spec.shape[0], device=device)
        if value.operator == "constant":
            return torch.frombuffer(bytearray(value.data), dtype=spec.dtype).view(spec.shape).to(device)
        inputs = self.inputs(step)
        if value.operator in VIEWS and (value.operator != "cast" or inputs[0].dtype is spec.dtype):
            return VIEWS[value.operator](step.call, inputs[0], spec)
        out = torch.empty(spec.shape, dtype=spec.dtype, device=device)
        kernel = KERNELS[value.operator]
        specs = [Spec(tuple(each.shape), each.dtype) for each in inputs]
        scratch = [
            torch.empty(each.shape, dtype=each.dtype, device=device) for each in kernel.scratch(step.call, specs, spec)
        ]
        unfit = kernel.run(step.call, inputs, out, scratch)
        if unfit is not None and bool(unfit.any()):
            name = self.plan.verified.program.name
            raise ProcessorFailed(f"program {name} casts a constant to int64 that does not fit in it", processor=name)
        return out

    def inputs(self, step: Step) -> list[torch.Tensor]:
        """The inputs of a step, with the axes that broadcasting needs."""
        return [
            self.numbers[source] if scalar else aligned(self.values[source], missing)
            for source, missing, scalar in zip(step.inputs, step.missing, step.scalars, strict=True)
        ]


class Runner:
    """Runs programs in this process. One thread at a time may use it.

    Args:
        max_bytes: limit of the memory of one run, and of the constants of all programs that are kept.
    """

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._arenas: dict[torch.device, Arena] = {}
        self._bound: BoundedTable[Any, _Bound] = BoundedTable(_MAX_PLANS)
        self._row_bytes: BoundedTable[tuple[str, int, torch.dtype], int] = BoundedTable(_MAX_PLANS)

    @property
    def constant_bytes(self) -> int:
        """Memory of the constants of the programs that are kept."""
        return sum(bound.plan.constant_bytes for bound in self._bound.values())

    def apply(
        self,
        verified: Verified,
        logits: torch.Tensor,
        rows: Sequence[int] | slice,
        params: Sequence[Mapping[str, Any]] | Columns = (),
        histories: Sequence[RequestTokens] = (),
        *,
        restored: Collection[int] = (),
    ) -> dict[int, ProcessorFailed]:
        """Run a program on rows of the logits, in place. The other rows stay as they are.

        Args:
            verified: the program.
            logits: float32, float16 or bfloat16 [rows, vocab_size], on any device.
            rows: ascending rows.
            params: parameters of each of the rows; may be left out if the program declares none.
            histories: the ids of each of the rows; may be left out if the program does not read them.
            restored: rows to restore if they fail; other failed rows hold any values.

        Returns:
            The failed rows: a number that int64 cannot hold, or a NaN in the result of a program that can make one of
            logits without NaN. NaN in logits on a GPU is not searched for, because that would wait for the device.

        Raises:
            InvalidArgument: the rows are not ascending, or another number of params or histories is passed.
            InvalidArgument: not a matrix, another dtype, or the logits require gradients while grad mode is on.
            InvalidArgument: as `check_params`.
            InvalidArgument: the program does not fit the logits' width.
            LimitExceeded: the run would need too much memory.
        """
        indices = _indices(rows, _height(logits))
        check_gradient(logits)
        if not indices:
            return {}
        if not params and not verified.program.parameters:
            params = [{}] * len(indices)
        if not isinstance(params, Columns):
            params = Columns.checked(verified, params)
        if params.rows != len(indices):
            raise InvalidArgument(
                f"parameters of {params.rows} rows for {len(indices)} rows; pass one dict for each row"
            )
        if verified.reads_history and len(histories) != len(indices):
            raise InvalidArgument(f"{len(histories)} histories for {len(indices)} rows; pass one for each row")
        parts = self._parts(verified, indices, logits)
        failed: dict[int, ProcessorFailed] = {}
        with torch.no_grad():
            try:  # all parts are planned before one of them runs, so that none runs if one is refused
                for length in sorted({part.end - part.begin for part in parts}, reverse=True):
                    self._bind(verified, length, logits, copied=parts[0].span is None)
            except ProcessorFailed as error:  # a constant
                return dict.fromkeys(indices, error)
            originals = {row: logits[row].clone() for row in indices if row in restored}
            try:
                for begin, end, span in parts:
                    chosen, bound = indices[begin:end], self._bind(verified, end - begin, logits, copied=span is None)
                    selected = logits[span] if span is not None else take_rows(logits, chosen, bound.copy)
                    unfit = _run(bound, selected, params.part(begin, end), histories[begin:end])
                    if span is None:
                        put_rows(logits, chosen, selected)
                    failed |= _failures(bound.plan, selected, chosen, unfit)
            except BaseException:
                for row, original in originals.items():
                    logits[row] = original
                raise
            for row in failed.keys() & originals.keys():
                logits[row] = originals[row]
        return failed

    def _parts(self, verified: Verified, indices: Sequence[int], logits: torch.Tensor) -> list[_Part]:
        span = even_span(indices)
        if logits.device.type != "cpu":
            return [_Part(0, len(indices), span)]
        parts = [(0, len(indices))]
        if span is None:
            parts = even_parts(indices)
            copied_bytes = len(indices) * logits.shape[1] * logits.element_size()
            if not are_worthwhile(parts, len(verified.program.values), copied_bytes):
                return [_Part(0, len(indices), None)]
        parts = divided(parts, self._bytes_of_row(verified, logits))
        return [_Part(begin, end, even_span(indices[begin:end])) for begin, end in parts]

    def _bytes_of_row(self, verified: Verified, logits: torch.Tensor) -> int:
        """Memory of the intermediate values of one row. Raises the errors of `make_plan`."""
        key = verified.program.digest, logits.shape[1], logits.dtype
        if key not in self._row_bytes:
            plan = make_plan(verified, 1, logits.shape[1], logits.dtype, max_bytes=self._max_bytes)
            self._row_bytes[key] = plan.arena_bytes
        return self._row_bytes[key]

    def _bind(self, verified: Verified, rows: int, logits: torch.Tensor, *, copied: bool) -> _Bound:
        width, dtype, device = logits.shape[1], logits.dtype, logits.device
        key = verified.program.digest, rows, width, dtype, device, copied
        bound = self._bound.use(key)
        if bound is not None:
            return bound
        plan = make_plan(verified, rows, width, dtype, copied=copied, max_bytes=self._max_bytes)
        arena = self._arenas.setdefault(device, Arena(device))
        if plan.arena_bytes > arena.bytes:
            # The other plans' tensors would keep the memory that is replaced.
            for other in [key for key in self._bound if key[4] == device]:
                del self._bound[other]
            arena.reserve(plan.arena_bytes)
        with torch.inference_mode(mode=False):
            bound = self._bound[key] = _Bound(plan, arena, device)
            if plan.copy_offset is not None:
                bound.copy = arena.view(plan.copy_offset, (rows, width), dtype)
        while self.constant_bytes > self._max_bytes:
            self._bound.popitem(last=False)
        return bound


def _run(
    bound: _Bound, selected: torch.Tensor, columns: Columns, histories: Sequence[RequestTokens]
) -> list[torch.Tensor]:
    """Run the steps. Returns bool[rows] for each cast that found any: the rows where a number does not fit."""
    values, unfit = bound.values, []
    for position, value in enumerate(bound.plan.verified.program.values):
        if value.operator == "logits":
            values[position] = selected
    for step, memory, scratch in zip(bound.plan.steps, bound.outputs, bound.scratch, strict=True):
        operator = step.call.value.operator
        if memory is not None and operator in SOURCES:
            _fill(step.call.value, columns, histories, memory, bound.plan.verified.program.window)
            values[step.position] = memory
            continue
        inputs = bound.inputs(step)
        if step.offset == VIEW:
            values[step.position] = VIEWS[operator](step.call, inputs[0], step.spec)
            continue
        out = memory if memory is not None else selected
        if step.overwritten is not None:
            out = inputs[step.overwritten]  # the same object, so that kernels notice
        flags = KERNELS[operator].run(step.call, inputs, out, scratch)
        if flags is not None:  # reduced to memory of its own before another value gets the scratch memory
            unfit.append(flags.view(len(flags), -1).any(dim=1))
        values[step.position] = out
    if not bound.plan.result_in_place:
        selected.copy_(values[-1])
    for position, kind in enumerate(bound.plan.verified.types):
        if kind.has_rows:
            values[position] = None  # else the engine's logits would be kept
    return unfit


def _fill(value: Value, columns: Columns, histories: Sequence[RequestTokens], out: torch.Tensor, window: int) -> None:
    if value.operator == "parameter":
        out.copy_(torch.tensor(columns.values[value.parameter], dtype=out.dtype))
    elif value.operator == "history":
        history_values.fill_history(histories, out)
    elif value.operator == "history_length":
        out.copy_(torch.tensor([min(each.history.length, window) for each in histories]))
    else:
        history_values.fill_counts(histories, out, generated=value.flag)


def _failures(
    plan: Plan, selected: torch.Tensor, indices: Sequence[int], unfit: Sequence[torch.Tensor]
) -> dict[int, ProcessorFailed]:
    name = plan.verified.program.name
    failed: dict[int, ProcessorFailed] = {}
    for offset in rows_with_nan(selected) if plan.may_be_nan else ():
        message = f"program {name} returned NaN in a row; return numbers, or -inf for ids not to be sampled"
        failed[indices[offset]] = ProcessorFailed(message, processor=name)
    for rows in unfit:
        for offset in rows.nonzero().flatten().tolist():
            message = f"program {name} casts a number to int64 that does not fit in it; limit the number first"
            failed[indices[offset]] = ProcessorFailed(message, processor=name)
    return dict(sorted(failed.items()))


def _height(logits: torch.Tensor) -> int:
    if not isinstance(logits, torch.Tensor):
        raise InvalidArgument(f"logits are a {type(logits).__name__}; programs run on a torch tensor")
    datatype_of(logits.dtype)
    return check_matrix(logits)[0]


def _indices(rows: Sequence[int] | slice, height: int) -> Sequence[int]:
    indices = range(height)[rows] if isinstance(rows, slice) else rows
    ascending = isinstance(indices, range) and indices.step > 0
    if not ascending and any(low >= high for low, high in itertools.pairwise(indices)):
        raise InvalidArgument("the rows are not ascending; pass each row once, in ascending order")
    if len(indices) and not (indices[0] >= 0 and indices[-1] < height):
        raise InvalidArgument(f"rows {indices[0]} to {indices[-1]} of logits with {height} rows")
    return indices
