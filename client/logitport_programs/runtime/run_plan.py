"""Memory and order of a program's run, by shape arithmetic alone.

Every value is a view of a root, and every root has an offset: in the arena, or the selected rows of the
logits themselves. Its memory is free when the last reader of its root has run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from logitport.core.tensors import datatype_of
from logitport.errors import LimitExceeded
from logitport_programs.program import Value
from logitport_programs.rules import HISTORY_OPERATORS
from logitport_programs.runtime.arena import Layout
from logitport_programs.runtime.kernels import KERNELS, VIEWS, KernelCall, Spec
from logitport_programs.runtime.nan import may_be_nan
from logitport_programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_programs.runtime.kernels import Kernel
    from logitport_programs.verifier import Verified

DEFAULT_MAX_BYTES = 1 << 30
# The offset of what is not in the arena: the selected rows of the logits.
LOGITS = -1
# The offset of views, which have none of their own.
VIEW = -2

SOURCES = frozenset({"parameter"}) | HISTORY_OPERATORS
_DTYPES = {Element.FLOAT32: torch.float32, Element.INT64: torch.int64, Element.BOOL: torch.bool}


class Step(NamedTuple):
    """One operator of a run.

    Attributes:
        position: the position of its value.
        call: the description of the value.
        spec: shape and dtype of the result.
        inputs: positions of the inputs.
        missing: axes to insert behind the rows of each input.
        scalars: whether each input is a `full` that is passed as one number.
        offset: offset of the result in the arena; LOGITS or VIEW.
        overwritten: the input that has the memory of the result, or None.
        scratch: offset and spec of scratch memory.
    """

    position: int
    call: KernelCall
    spec: Spec
    inputs: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    scalars: tuple[bool, ...] = ()
    offset: int = VIEW
    overwritten: int | None = None
    scratch: tuple[tuple[int, Spec], ...] = ()


class Plan(NamedTuple):
    """A plan.

    Attributes:
        verified: the program.
        constants: the values that are the same for all rows: computed once.
        steps: the other values, in order.
        copy_offset: offset of a copy of the rows; None if the program runs on the logits themselves.
        result_in_place: whether the last value is the rows of the logits, or their copy.
        arena_bytes: memory of all steps.
        constant_bytes: memory of the constants.
        allocated_bytes: at most what one operator allocates while it runs.
        may_be_nan: whether the result may have NaN for logits without NaN.
    """

    verified: Verified
    constants: tuple[Step, ...]
    steps: tuple[Step, ...]
    copy_offset: int | None
    result_in_place: bool
    arena_bytes: int
    constant_bytes: int
    allocated_bytes: int
    may_be_nan: bool

    @property
    def bytes(self) -> int:
        """Peak memory."""
        return self.arena_bytes + self.constant_bytes + self.allocated_bytes


def make_plan(
    verified: Verified,
    rows: int,
    vocab_size: int,
    dtype: torch.dtype,
    *,
    copied: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Plan:
    """Plan a run. Allocates nothing.

    Args:
        verified: the program.
        rows: number of selected rows, at least 1.
        vocab_size: width of the logits.
        dtype: dtype of the logits.
        copied: whether the rows are copied first, because they are not evenly spaced.
        max_bytes: limit of the memory.

    Raises:
        InvalidArgument: a size does not fit logits of this width.
        LimitExceeded: the run would need more memory, or a row of a value is too long.
    """
    planned = _Planner(verified, rows, vocab_size, dtype, copied=copied).plan()
    if planned.bytes > max_bytes:
        raise LimitExceeded(
            f"program {verified.program.name!r} needs {planned.bytes} bytes for {rows} rows of {vocab_size} logits; "
            f"the limit is {max_bytes}: run fewer rows at once"
        )
    return planned


class _Planner:
    def __init__(self, verified: Verified, rows: int, vocab_size: int, dtype: torch.dtype, *, copied: bool) -> None:
        self._verified = verified
        self._values = verified.program.values
        self._dtype = dtype
        types = verified.types
        self._specs = [
            Spec(verified.shape(position, rows, vocab_size), _DTYPES.get(kind.element, dtype))
            for position, kind in enumerate(types)
        ]
        self._constant = [not kind.has_rows for kind in types]
        self._calls = [self._call(position, vocab_size) for position in range(len(self._values))]
        self._roots, self._whole = self._find_roots()
        self._last_use = self._find_last_uses()
        self._layout = Layout()
        self._copy_offset = self._layout.take(Spec((rows, vocab_size), dtype).bytes) if copied else None
        self._offsets: dict[int, int] = {}  # of roots
        self._in_logits = next((at for at, value in enumerate(self._values) if value.operator == "logits"), None)

    def plan(self) -> Plan:
        constants, steps = [], []
        for position, value in enumerate(self._values):
            if self._constant[position]:
                constants.append(self._step(position))
            elif value.operator == "logits":
                self._offsets[self._roots[position]] = LOGITS
            elif self._is_view(position):
                steps.append(self._step(position))
            else:
                steps.append(self._placed(position))
        result = len(self._values) - 1
        in_place = self._offsets[self._roots[result]] == LOGITS
        if in_place and not self._whole[result]:  # the rows cannot be overwritten by a view of themselves
            spec = self._specs[result]
            copy = Step(result, KernelCall(Value("cast", (result,))), spec, (result,), (0,), (False,))
            steps.append(copy._replace(offset=self._layout.take(spec.bytes)))
            in_place = False
        return Plan(
            self._verified,
            tuple(constants),
            tuple(steps),
            self._copy_offset,
            in_place,
            self._layout.bytes,
            sum(step.spec.bytes for step in constants if self._has_memory(step.position)),
            max((self._allocated_bytes(step) for step in (*constants, *steps)), default=0),
            may_be_nan(self._verified, datatype_of(self._dtype)),
        )

    def _placed(self, position: int) -> Step:
        """A step that computes a value, with its memory."""
        step = self._step(position)
        if step.call.value.operator in SOURCES:
            return self._allocated(step)
        kernel = KERNELS[step.call.value.operator]
        overwritten = self._overwritten(step, kernel)
        if overwritten is not None:
            root = self._roots[step.inputs[overwritten]]
            self._offsets[position] = self._offsets.pop(root)
            if self._offsets[position] == LOGITS:
                self._in_logits = position
            step = step._replace(offset=self._offsets[position], overwritten=overwritten)
        elif self._may_write_to_logits(step, kernel):
            self._offsets[position] = LOGITS
            step = step._replace(offset=LOGITS)
        else:
            step = self._allocated(step)
        specs = kernel.scratch(step.call, [self._specs[source] for source in step.inputs], step.spec)
        step = step._replace(scratch=tuple((self._layout.take(spec.bytes), spec) for spec in specs))
        for offset, _ in step.scratch:
            self._layout.give_back(offset)
        self._release(position)
        return step

    def _allocated_bytes(self, step: Step) -> int:
        """Return the size of the memory that the operator allocates while it runs."""
        kernel = KERNELS.get(step.call.value.operator)
        if kernel is None or self._is_view(step.position):
            return 0
        inputs = [self._specs[source] for source in step.inputs]
        if kernel.copies_views:
            return 0 if self._has_memory(step.inputs[0]) else inputs[0].bytes
        scratch = sum(spec.bytes for spec in kernel.scratch(step.call, inputs, step.spec))
        return kernel.allocated(step.call, inputs, step.spec) + (scratch if self._constant[step.position] else 0)

    def _allocated(self, step: Step) -> Step:
        offset = self._offsets[step.position] = self._layout.take(step.spec.bytes)
        return step._replace(offset=offset)

    def _release(self, position: int) -> None:
        for root in {self._roots[source] for source in self._values[position].inputs}:
            if root in self._offsets and self._last_use[root] == position and self._offsets[root] != LOGITS:
                self._layout.give_back(self._offsets.pop(root))

    def _overwritten(self, step: Step, kernel: Kernel) -> int | None:
        """Which input may have the memory of the result, because it dies here."""
        found = [index for index in range(len(step.inputs)) if self._may_overwrite(step, kernel, index)]
        if step.position == len(self._values) - 1:
            in_logits = [index for index in found if self._offsets[self._roots[step.inputs[index]]] == LOGITS]
            return in_logits[0] if in_logits else None
        return found[0] if found else None

    def _may_overwrite(self, step: Step, kernel: Kernel, index: int) -> bool:
        source = step.inputs[index]
        root = self._roots[source]
        if self._constant[source] or self._last_use[root] != step.position or not self._whole[source]:
            return False
        others = [other for at, other in enumerate(step.inputs) if at != index and self._roots[other] == root]
        if step.call.value.operator == "scatter_drop":
            return index == 0 and not others
        same = all(self._whole[other] and self._specs[other].shape == step.spec.shape for other in others)
        return kernel.elementwise and self._specs[source] == step.spec and same

    def _may_write_to_logits(self, step: Step, kernel: Kernel) -> bool:
        """Whether this is the result, and the logits are not read any more."""
        if step.position < len(self._values) - 1:
            return False
        simple = kernel.elementwise or step.call.value.operator == "scatter_drop"
        return simple and (self._in_logits is None or self._last_use[self._in_logits] < step.position)

    def _step(self, position: int) -> Step:
        value, rank = self._values[position], len(self._verified.types[position].shape)
        missing, scalars = [0] * len(value.inputs), [False] * len(value.inputs)
        kernel = KERNELS.get(value.operator)
        if value.operator == "expand" or (kernel is not None and kernel.broadcasts):
            for index, source in enumerate(value.inputs):
                kind = self._verified.types[source]
                missing[index] = rank - len(kind.shape) if kind.has_rows else 0
        if kernel is not None and kernel.elementwise and kernel.broadcasts:
            scalars = [self._values[source].operator == "full" for source in value.inputs]
            if not self._suffice(value.inputs, missing, scalars, self._specs[position].shape):
                scalars = [False] * len(scalars)
        return Step(
            position, self._calls[position], self._specs[position], value.inputs, tuple(missing), tuple(scalars)
        )

    def _suffice(
        self, inputs: Sequence[int], missing: Sequence[int], scalars: Sequence[bool], shape: tuple[int, ...]
    ) -> bool:
        """Whether the inputs that are not one number have this shape together."""
        shapes = []
        for source, axes, scalar in zip(inputs, missing, scalars, strict=True):
            if not scalar:
                own = self._specs[source].shape
                shapes.append((*own[:1], *(1,) * axes, *own[1:]) if axes else own)
        return np.broadcast_shapes(*shapes) == shape  # torch's function imports sympy: 0.4 s at the first call

    def _find_roots(self) -> tuple[list[int], list[bool]]:
        """The value that each value is a view of, and whether it has all of its elements."""
        roots: list[int] = []
        whole: list[bool] = []
        logits: int | None = None
        for position, value in enumerate(self._values):
            if self._is_view(position):
                (source,) = value.inputs
                roots.append(roots[source])
                count, all_count = (math.prod(self._specs[at].shape) for at in (position, source))
                whole.append(whole[source] and count == all_count)
                continue
            if value.operator == "logits":
                logits = position if logits is None else logits
            roots.append(logits if value.operator == "logits" and logits is not None else position)
            whole.append(True)
        return roots, whole

    def _find_last_uses(self) -> dict[int, int]:
        last_use = dict.fromkeys(self._roots, -1)
        for position, value in enumerate(self._values):
            for source in value.inputs:
                last_use[self._roots[source]] = position
        last_use[self._roots[-1]] = len(self._values)
        return last_use

    def _is_view(self, position: int) -> bool:
        value = self._values[position]
        if value.operator == "cast":
            return self._specs[position].dtype is self._specs[value.inputs[0]].dtype
        return value.operator in VIEWS

    def _has_memory(self, position: int) -> bool:
        return not self._is_view(position) and self._values[position].operator != "full"

    def _call(self, position: int, vocab_size: int) -> KernelCall:
        value, window = self._values[position], self._verified.program.window
        begin = value.begin.of(vocab_size, window) if value.begin is not None else 0
        end = value.end.of(vocab_size, window) if value.end is not None else 0
        return KernelCall(value, begin, end)
