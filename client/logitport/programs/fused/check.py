"""Compares a compiled program with the numpy interpreter, on random rows and on rows of special numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.programs.columns import Columns
from logitport.programs.fused.native import Memory
from logitport.programs.fused.source import HAS_NAN, UNFIT
from logitport.programs.reference_runner import ReferenceRunner
from logitport.programs.types import Element

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport.programs.fused.native import Native
    from logitport.programs.program import Parameter
    from logitport.programs.verifier import Verified

# Around the width of vectors, and of the parts that sums are divided into.
_WIDTHS = (1, 2, 33, 1000, 4097, 8200)
_ROWS = 12
_SPECIAL = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e-40, 200.0, -200.0)
_TOLERANCE = 1e-3
# Comparisons with approximate numbers may have other results for some ids, and for some rows.
_MAX_OTHER_IDS = 0.01
_MAX_OTHER_ROWS = 0.1
_APPROXIMATE = frozenset(
    {"exp", "log", "sigmoid", "tanh", "power", "sum", "mean", "std", "softmax", "log_softmax", "cumsum"}
)
# Of parameters without limits.
_RANGE = 4.0


class WrongResult(Exception):
    """The compiled program computes something else than the interpreter."""


def check(verified: Verified, native: Native) -> None:
    """Compare. Raises WrongResult."""
    random = np.random.default_rng(0)
    wrong = rows = 0
    for width in _WIDTHS:
        logits, selected = _logits(random, width), sorted(random.permutation(2 * _ROWS)[:_ROWS].tolist())
        columns = Columns(verified, [_params(random, verified.program.parameters) for _ in selected])
        expected, found = logits.copy(), logits.copy()
        failed = ReferenceRunner().apply(verified, expected, selected, columns)
        status = native.run_at(verified, Memory(found.ctypes.data, width, width), selected, columns)
        others = [row for row in range(len(logits)) if row not in selected]
        if not np.array_equal(found[others].view(np.uint32), logits[others].view(np.uint32)):
            raise WrongResult(f"rows are changed that were not selected, at a width of {width}")
        exact = not any(value.operator in _APPROXIMATE for value in verified.program.values)
        for row, state in zip(selected, status.tolist(), strict=True):
            rows += 1
            unfit = row in failed and "int64" in failed[row].message
            same = bool(state & UNFIT) == unfit and bool(state & HAS_NAN) == bool(np.isnan(found[row]).any())
            if same and not unfit:  # else the row holds any values
                same = _is_same(expected[row], found[row], exact=exact)
            wrong += not same
            if exact and not same:
                raise WrongResult(f"a row of {width} exact results differs")
    if wrong > _MAX_OTHER_ROWS * rows:
        raise WrongResult(f"{wrong} of {rows} rows differ")


def _is_same(expected: NDArray[np.float32], found: NDArray[np.float32], *, exact: bool) -> bool:
    if exact:
        return np.array_equal(expected, found, equal_nan=True)
    close = np.isclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    return int((~close).sum()) <= max(1, _MAX_OTHER_IDS * len(close))


def _logits(random: np.random.Generator, width: int) -> NDArray[np.float32]:
    """Rows of ordinary logits, of logits with denied ids, and of special numbers."""
    drawn = random.normal(0, 4, (2 * _ROWS, width)).astype(np.float32)
    denied = random.random(drawn.shape) < random.choice([0.0, 0.2, 1.0], (len(drawn), 1), p=[0.5, 0.4, 0.1])
    drawn[denied] = -np.inf
    special = random.random(drawn.shape) < random.choice([0.0, 0.001, 1.0], (len(drawn), 1), p=[0.7, 0.2, 0.1])
    drawn[special] = random.choice(np.array(_SPECIAL, np.float32), int(special.sum()))
    return drawn


def _params(random: np.random.Generator, parameters: tuple[Parameter, ...]) -> tuple[Any, ...]:
    numbers: list[Any] = []
    for parameter in parameters:
        low = min(max(parameter.minimum, -_RANGE), parameter.maximum)
        high = max(min(parameter.maximum, _RANGE), low)
        number = random.uniform(low, high)
        if parameter.element is not Element.FLOAT32:
            number = int(np.clip(round(number), low, high))
        numbers.append(bool(number) if parameter.element is Element.BOOL else number)
    return tuple(numbers)
