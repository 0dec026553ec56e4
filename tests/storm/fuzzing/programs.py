"""Runs programs on any values, and compares them with the reference: those in untrusted bytes, and drawn ones."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import torch
from hypothesis import HealthCheck, given, settings

from logitport import TensorProcessor
from logitport.core.history import History
from logitport.errors import InvalidArgument, LimitExceeded, LogitportError, NotCapturable, RequestsFailed
from logitport_programs.capturing import capture
from logitport_programs.cost import milliseconds
from logitport_programs.parameters import Columns, check_params
from logitport_programs.program import Program
from logitport_programs.reference import run
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.verifier import Verified, verify
from tests.programs import differential
from tests.programs.differential import ANY, COMPARABLE, LAYOUTS, Layout, to_torch
from tests.programs.runtime.memory import held_bytes, plan_of
from tests.programs.strategies import APPROXIMATE, Case

_WIDTHS = (1, 5, 24)
_DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
# Of all values. The reference is slow.
_MAX_ELEMENTS = 20_000
_NUMBERS = (0.0, -0.0, 1.0, -2.5, 7.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38, 9.3e18, -95.0)
_HISTORIES = (((), ()), ((0, 1, 1), (4,)), (range(30), range(3)))
# Of the tensor; the program runs on those between them.
_OTHER_ROWS = (0, 2, 5)
_ROWS = (1, 3, 4)


def program(data: bytes) -> None:
    """A program is refused, or runs on any values: only on its rows, in its memory, and as the reference does."""
    try:
        decoded = Program.from_bytes(data)
        verified = verify(decoded)
    except LogitportError:
        return
    assert decoded.to_bytes() == data
    params = _params(verified)
    for width in _WIDTHS:
        try:
            verified.check_width(width)
        except (InvalidArgument, LimitExceeded):
            continue
        assert milliseconds(verified, width) > 0
        shapes = [verified.shape(place, 1, width) for place in range(len(verified.types))]
        if params is None or sum(map(math.prod, shapes)) > _MAX_ELEMENTS:
            continue
        for dtype in _DTYPES:
            _check(verified, width, np.dtype(dtype), params)


def drawn_program(data: bytes) -> None:
    """A valid program, which the bytes draw with its logits, requests and layout, runs as the reference does."""
    _drawn.hypothesis.fuzz_one_input(data)  # type: ignore[attr-defined]


@settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(COMPARABLE | ANY, LAYOUTS)
def _drawn(case: Case, layout: Layout) -> None:
    differential.check(case, layout)


def _check(verified: Verified, width: int, dtype: np.dtype[Any], params: dict[str, Any]) -> None:
    numbers = np.resize(np.array(_NUMBERS, np.float32), (len(_ROWS), width))
    numbers[1] = np.linspace(-20, 20, width)
    with np.errstate(all="ignore"):
        array = numbers.astype(dtype)
    logits = torch.full((6, width), 9.0).to(to_torch(array).dtype)
    logits[list(_ROWS)] = to_torch(array)
    before = logits.clone()
    histories = [History(*one) for one in _HISTORIES]
    columns = Columns.checked(verified, [params] * len(_ROWS))
    runner = Runner()
    plan = plan_of(runner, verified, _ROWS, logits)
    failed = runner.apply(verified, logits, _ROWS, columns, [RequestTokens(one) for one in histories])
    others = list(_OTHER_ROWS)
    assert torch.equal(logits[others].view(torch.uint8), before[others].view(torch.uint8)), "another row was written"
    assert held_bytes(runner) == plan.arena_bytes, "the plan does not have the memory of the run"
    failures: Any = {}
    try:
        expected = run(verified, array, columns.values, histories)
    except RequestsFailed as error:
        expected, failures = error.result, error.failures
    for at, row in enumerate(_ROWS):
        if at in failures:
            assert row in failed, "the runtime has not found a number that int64 cannot hold"
        elif not any(value.operator in APPROXIMATE for value in verified.program.values):
            np.testing.assert_array_equal(logits[row].float().numpy(), expected[at].astype(np.float32))
        if row not in failed and not np.isnan(numbers[at]).any():
            assert not logits[row].isnan().any(), "a NaN was not found"


def _params(verified: Verified) -> dict[str, Any] | None:
    """The parameters of a request; None if no number is permitted."""
    params: dict[str, Any] = {}
    for parameter in verified.program.parameters:
        for number in ([3, 0, 3], [], None, parameter.maximum, parameter.minimum, 1.0, 1, 0, True, False):
            given = {} if number is None else {parameter.name: number}
            try:
                check_params([parameter], given)
            except InvalidArgument:
                continue
            params |= given
            break
        else:
            return None
    return params


# What a class has, and a line of its `process` that changes it: none may become a program.
_CHANGES = (
    ("n = 0", "self.n += 1"),
    ("n = 0", "type(self).n += 1"),
    ("n = []", "self.n.append(1)"),
    ("n = {}", "self.n[len(self.n)] = 1"),
    ("n = torch.zeros(1)", "self.n = self.n + 1"),
    ("n = 0", "setattr(self, 'n', self.n + 1)"),
    ("def __init__(self): self.n = [[0]]", "self.n[0][0] += 1"),
)


def state(data: bytes) -> None:
    """A class that changes its state in a call is no program, which would have the state of its capture forever."""
    has, changes = _CHANGES[sum(data) % len(_CHANGES)]
    uses = ("logits + 1", "logits / 2 + logits")[len(data) % 2]
    names: dict[str, Any] = {"TensorProcessor": TensorProcessor, "torch": torch, "__name__": __name__}
    process = f"def process(self, logits, params, history):\n  {changes}\n  return {uses}"
    exec(f"class Changes(TensorProcessor):\n {has}\n {process}", names)
    try:
        capture(names["Changes"])
    except NotCapturable:
        return
    raise AssertionError(f"{changes} has become a part of a program")
