"""Rows that fail: NaN in the result, and casts without an int64. Calls that are refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.core.history import History
from logitport.errors import InvalidArgument, ProcessorFailed
from logitport_programs.parameters import Columns
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.types import Element, Size
from tests.programs.runtime import build
from tests.programs.runtime.build import Writer

if TYPE_CHECKING:
    from logitport_programs.verifier import Verified

WIDTH = 5


def logarithm() -> Verified:
    write = Writer()
    write("log", write("logits"))
    return write.verified(name="logarithm")


def through_int64() -> Verified:
    write = Writer()
    write("cast", write("cast", write("logits"), element=Element.INT64), element=Element.LOGITS)
    return write.verified(name="through_int64")


def logits_with(number: float, *rows: int) -> torch.Tensor:
    logits = torch.ones(6, WIDTH)
    logits[list(rows), 3] = number
    return logits


@pytest.mark.parametrize("rows", [slice(None), slice(1, None, 2), [0, 1, 3, 4]], ids=["all", "even", "irregular"])
@pytest.mark.parametrize(
    ("verified", "number", "message"),
    [
        (logarithm(), -1.0, "program logarithm returned NaN in a row"),
        (through_int64(), math.inf, "program through_int64 casts a number to int64 that does not fit"),
        (through_int64(), -1e19, "casts a number"),
    ],
    ids=["nan", "inf", "large"],
)
def test_a_row_fails_alone(verified: Verified, number: float, message: str, rows: Any) -> None:
    logits = logits_with(number, 1, 2, 3)
    before = logits.clone()
    selected = [row for row in range(6) if row in (range(6)[rows] if isinstance(rows, slice) else rows)]
    failed = Runner().apply(verified, logits, rows, restored=[3])
    assert list(failed) == [row for row in (1, 2, 3) if row in selected]
    assert all(isinstance(error, ProcessorFailed) and message in error.message for error in failed.values())
    assert torch.equal(logits[3], before[3])
    others = [row for row in range(6) if row not in failed]
    expected = torch.where(torch.tensor([row in selected for row in others])[:, None], logits[others], before[others])
    assert torch.equal(logits[others], expected)


def test_a_nan_that_is_cast_to_int64_fails() -> None:
    """Also where the result has no NaN, and limits make all numbers fit."""
    write = Writer()
    limited = write("minimum", write("maximum", write("logits"), write.full(-9.0)), write.full(9.0))
    write("cast", write("cast", limited, element=Element.INT64), element=Element.LOGITS)
    logits = logits_with(math.nan, 1, 4)
    failed = Runner().apply(write.verified(), logits, slice(None))
    assert list(failed) == [1, 4]
    assert all("casts a number to int64 that does not fit" in error.message for error in failed.values())


def test_a_constant_that_does_not_fit_int64() -> None:
    write = Writer()
    number = write("cast", write.full(math.inf, Element.FLOAT32), element=Element.INT64)
    write("add", write("logits"), write("cast", number, element=Element.LOGITS))
    logits = torch.ones(3, WIDTH)
    failed = Runner().apply(write.verified(), logits, [0, 2])
    assert list(failed) == [0, 2]
    assert "casts a constant to int64" in failed[2].message
    assert (logits == 1).all()


def test_no_rows_are_no_work() -> None:
    logits = torch.ones(2, WIDTH)
    assert Runner().apply(build.temperature(), logits, []) == {}
    assert Runner().apply(build.temperature(), logits, slice(2, 2)) == {}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *(({"rows": rows}, "rows") for rows in ([1, 0], [0, 0], [-1, 0], [0, 2], slice(None, None, -1))),
        ({"logits": torch.ones(5)}, None),
        ({"logits": torch.ones(2, 5, dtype=torch.float64)}, None),
        ({"logits": torch.ones(2, 5).numpy()}, None),
        ({"verified": build.top_k(), "logits": torch.ones(2, 3)}, "k is 4, of an axis of 3"),
        ({"params": [{}]}, "parameters of 1 rows for 2 rows"),
        ({"params": [{}, {"temperature": 0}]}, "'temperature'"),
        ({"verified": build.repetition_penalty(3), "histories": [RequestTokens(History())]}, "1 histories for 2 rows"),
    ],
)
def test_calls_that_are_refused(changed: dict[str, Any], message: str | None) -> None:
    call: Any = {"verified": build.temperature(), "rows": slice(None), "params": [{}, {}], **changed}
    logits = call.pop("logits", torch.ones(2, WIDTH))
    with pytest.raises(InvalidArgument, match=message):
        Runner().apply(logits=logits, **call)
    assert (logits == 1).all()


@pytest.mark.parametrize("rows", [slice(None), [0, 1, 3]], ids=["all", "irregular"])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_logits_with_a_gradient_are_refused(is_leaf: bool, rows: Any) -> None:
    weights = torch.ones(4, WIDTH, requires_grad=True)
    logits = weights if is_leaf else weights * 4
    before, params = logits.tolist(), [{"temperature": 0.5}] * len(range(4)[rows] if isinstance(rows, slice) else rows)
    with pytest.raises(InvalidArgument, match="require gradients"):
        Runner().apply(build.temperature(), logits, rows, params)
    assert logits.tolist() == before
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not Runner().apply(build.temperature(), logits, rows, params)
    assert logits[0].tolist() == [4 * each for each in before[0]]


def test_columns_are_checked_once_and_reused() -> None:
    verified, runner = build.temperature(), Runner()
    columns = Columns.checked(verified, [{"temperature": 2}, {}])
    logits = torch.ones(2, WIDTH)
    for _ in range(2):
        runner.apply(verified, logits, slice(None), columns)
    assert logits[:, 0].tolist() == [0.25, 1.0]


def test_an_exception_restores_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Writer()
    index = write("top_k", write("exp", write("logits")), integer=2)
    write("pad", write("cast", index, element=Element.LOGITS), axis=1, begin=Size(), end=Size(1, 0, -2))
    monkeypatch.setattr(torch, "topk", lambda *_, **__: 1 / 0)
    logits = torch.ones(2, WIDTH)
    with pytest.raises(ZeroDivisionError):
        Runner().apply(write.verified(), logits, slice(None), restored=[1])
    assert logits[0, 0] == torch.tensor(1.0).exp()
    assert logits[1, 0] == 1
