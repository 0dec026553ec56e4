"""Compares the runtime with the interpreter on a program: the rows, which of them fail, and with which error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_programs import reference
from logitport_programs.parameters import Columns
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime import parts
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.runtime.reference_runner import ReferenceRunner
from logitport_programs.verifier import verify
from tests.programs.strategies import (
    APPROXIMATE,
    MODERATE_NUMBERS,
    REDUCTIONS_APPROXIMATE,
    Case,
    approximate_programs,
    cases,
    programs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.errors import ProcessorFailed

# The largest relative difference of two neighbors, the smallest normal number, and the largest one.
_PRECISION = {
    "float32": (2.0**-23, 2.0**-126, 3.402823e38),
    "float16": (2.0**-10, 2.0**-14, 65504.0),
    "bfloat16": (2.0**-7, 2.0**-126, 3.3895e38),
}
# Sums and squares of smaller terms do not overflow, in any order.
_LARGEST_TERMS = 1e37
# Deviations below it may count as 0: their squares are below the smallest normal number.
_SMALLEST_DEVIATION = 2.0**-63
# Last bits by which a sum may differ, relative to its terms.
_SUM_ULPS = 64


class Layout(NamedTuple):
    """How rows are selected, and lie in memory.

    Attributes:
        selection: "all" rows of the tensor, every second one ("even"), or "irregular" ones.
        memory: "contiguous"; columns of a "wider" tensor; every second column ("spread"); "transposed".
        in_parts: whether each part of the rows runs alone, whatever its size is.
        restored: whether failed rows are restored.
    """

    selection: str = "all"
    memory: str = "contiguous"
    in_parts: bool = False
    restored: bool = False


LAYOUTS = st.builds(
    Layout,
    st.sampled_from(["all", "even", "irregular"]),
    st.sampled_from(["contiguous", "wider", "spread", "transposed"]),
    st.booleans(),
    st.booleans(),
)
# Of which results are compared, in part within rounding; and any programs.
COMPARABLE = cases(programs(exact=True)) | cases(approximate_programs(), MODERATE_NUMBERS)
ANY = cases(programs())


def check(case: Case, layout: Layout) -> None:
    """Run a program on both, and compare. Also checks that nothing but the selected rows is written.

    A program with an operator that follows an approximate one is only checked for NaN that is not reported: results
    may differ where an operator is not continuous.
    """
    verified = verify(case.program)
    height = len(case.logits)
    rows = _rows(layout.selection, height)
    whole, logits = _embedded(case.logits, rows, layout.memory)
    names = [parameter.name for parameter in case.program.parameters]
    columns = Columns(verified, [tuple(case.params[name][row] for name in names) for row in range(height)])
    histories = [RequestTokens(one) for one in case.histories]
    expected, terms = case.logits.copy(), _Terms()
    try:
        with terms.recorded():
            wanted = ReferenceRunner().apply(verified, expected, range(height), columns, histories)
    except (InvalidArgument, LimitExceeded) as error:
        with pytest.raises(type(error)):
            Runner().apply(verified, logits, rows, columns, histories)
        return
    before = whole.clone()
    failed = _run(layout, verified, logits, rows, columns, histories)
    found = to_numpy(logits)[list(rows)]
    logits[list(rows)] = 9.0
    assert torch.equal(_bits(whole), _bits(before.fill_(9.0))), "something else was written than the selected rows"
    operators = [value.operator for value in case.program.values]
    continuous = _are_continuous(case)
    for at, row in enumerate(rows):
        original = case.logits[at].astype(np.float32)
        had_nan, kind = bool(np.isnan(original).any()), _kind(failed.get(row))
        if continuous:
            assert (kind == "unfit") == (_kind(wanted.get(at)) == "unfit"), "casts differ"
        if kind != "" and layout.restored:
            np.testing.assert_array_equal(found[at], original)
        elif kind != "nan" and not had_nan:
            assert kind == "unfit" or not np.isnan(found[at]).any(), "NaN is not reported"
        if not continuous or terms.may_overflow:
            continue
        if not had_nan:
            assert kind == _kind(wanted.get(at))
        if kind == "unfit" or (kind and layout.restored):
            continue
        if not APPROXIMATE.isdisjoint(operators):
            _assert_close(found[at], expected[at], terms.largest, operators)
        else:
            np.testing.assert_array_equal(found[at], expected[at].astype(np.float32))


def _rows(selection: str, height: int) -> Sequence[int]:
    return {
        "all": range(height),
        "even": range(1, 2 * height + 1, 2),
        "irregular": [0, *range(2, height + 1)],
    }[selection]


def _embedded(array: NDArray[Any], rows: Sequence[int], memory: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor of nines, and a view of it, some rows of which are the array."""
    source = to_torch(array)
    height, width = rows[-1] + 2 if rows != range(len(array)) else len(array), array.shape[1]
    sizes = {"contiguous": (height, width), "wider": (height, width + 3), "spread": (height, 2 * width)}
    whole = torch.full(sizes.get(memory, (width, height)), 9.0, dtype=source.dtype)
    views: dict[str, Callable[[], torch.Tensor]] = {
        "contiguous": lambda: whole[:],
        "wider": lambda: whole[:, 1 : width + 1],
        "spread": lambda: whole[:, ::2],
        "transposed": whole.t,
    }
    logits = views[memory]()
    logits[list(rows)] = source
    return whole, logits


def _run(
    layout: Layout, verified: Any, logits: torch.Tensor, rows: Sequence[int], columns: Columns, histories: Any
) -> dict[int, ProcessorFailed]:
    """Run the program in memory that holds remains of another run."""
    runner, restored = Runner(), rows if layout.restored else ()
    part_bytes, operator_bytes = (1, 0) if layout.in_parts else (parts._PART_BYTES, parts._BYTES_PER_OPERATOR)
    with mock.patch.multiple(parts, _PART_BYTES=part_bytes, _BYTES_PER_OPERATOR=operator_bytes):
        runner.apply(verified, logits.clone(), rows, columns, histories)
        for arena in runner._arenas.values():
            arena._memory.fill_(0xA5)
        return runner.apply(verified, logits, rows, columns, histories, restored=restored)


def _are_continuous(case: Case) -> bool:
    """Whether no operator but casts, expansions and the like follows an approximate one."""
    inexact: set[int] = set()
    for place, value in enumerate(case.program.values):
        if not inexact.isdisjoint(value.inputs):
            if value.operator not in ("cast", "expand"):
                return False
            inexact.add(place)
        elif value.operator in APPROXIMATE:
            inexact.add(place)
    return True


class _Terms:
    """The terms of the sums of approximate operators.

    Attributes:
        largest: the largest sum of absolute terms of one operator.
        may_overflow: whether a sum, or a sum of squares, may be outside of float32 in some order.
    """

    def __init__(self) -> None:
        self.largest = 0.0
        self.may_overflow = False

    def recorded(self) -> Any:
        """A context in which the interpreter records its terms."""
        operators: Mapping[str, Any] = reference._OPERATORS
        noting = {name: self._noting(operators[name]) for name in REDUCTIONS_APPROXIMATE}
        return mock.patch.dict(reference._OPERATORS, noting)  # type: ignore[arg-type]

    def _noting(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(operation: Any) -> Any:
            (source,) = operation.inputs
            if source.dtype == np.float32:
                terms = np.abs(source[np.isfinite(source)].astype(np.float64))
                self.largest = max(self.largest, float(terms.sum()))
                squares = float((terms**2).sum()) if operation.value.operator == "std" else 0.0
                self.may_overflow |= max(self.largest, 4 * squares) > _LARGEST_TERMS
            return function(operation)

        return run


def _assert_close(found: NDArray[Any], expected: NDArray[Any], terms: float, operators: Sequence[str]) -> None:
    """Compare within rounding. An overflow may be the largest number, a subnormal number 0."""
    epsilon, tiny, largest = _PRECISION[expected.dtype.name]
    absolute = tiny + _SUM_ULPS * 2.0**-23 * terms
    if "std" in operators:
        absolute += _SMALLEST_DEVIATION
    if "log_softmax" in operators:  # the logarithm of at most the width is rounded, too
        absolute += epsilon * math.log(len(expected) + 1)
    found, wanted = (np.clip(each.astype(np.float32), -largest, largest) for each in (found, expected))
    np.testing.assert_allclose(found, wanted, rtol=4 * epsilon, atol=absolute)


def _kind(error: ProcessorFailed | None) -> str:
    if error is None:
        return ""
    return "unfit" if "int64" in error.message else "nan"


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """Copy; torch does not read bfloat16 of ml_dtypes."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_numpy(logits: torch.Tensor) -> NDArray[Any]:
    """Copy, as float32."""
    converted: NDArray[Any] = logits.float().numpy().copy()
    return converted


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)
