"""Bad input sent to a server fails only its request: the exception, its message and the results of the others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import dill
import pytest
import torch

from logitport import (
    CustomLogitProcessor,
    InvalidArgument,
    LogitportError,
    PayloadError,
    ProcessorFailed,
    Request,
    RequestsFailed,
)
from tests.toy_processors import AddOne, FailsInWay, RaisesInInit, RequiresFloat

if TYPE_CHECKING:
    from logitport import Client

VOCAB = 32
INF = float("inf")


# A class of a script: dill ships it by value.
WrongArity = type("WrongArity", (), {"__module__": "__main__", "__call__": lambda self, logits: logits})


# tests/server/executors/test_bad_input.py has all of them.
REFUSED: dict[str, tuple[dict[str, Any], type[LogitportError], str]] = {
    "raising __init__": ({"processors": [(RaisesInInit, {})]}, PayloadError, "RaisesInInit raised .*no table for me"),
    "parameters that a class refuses": (
        {"processors": [(RequiresFloat, {"strength": 1})]},
        InvalidArgument,
        "strength must be a number",
    ),
}


def check(error: LogitportError, expected: type[LogitportError], message: str) -> None:
    assert type(error) is expected
    with pytest.raises(expected, match=message):
        raise error


GOOD = Request([3], processors=[("no_repeat_ngram", {"ngram_size": 1}), (AddOne, {})])


def good_row(row: torch.Tensor) -> bool:
    return row.tolist() == [-INF if token_id == 3 else 1.0 for token_id in range(VOCAB)]


@pytest.mark.parametrize(("name", "on_error"), list(zip(REFUSED, ["abort", "skip"], strict=True)))
def test_a_request_refused_in_apply(client: Client, name: str, on_error: Any) -> None:
    fields, expected, message = REFUSED[name]
    result = client.apply(torch.zeros(3, VOCAB), [GOOD, Request(**fields, on_error=on_error), GOOD], check=False)
    failed = {"abort": result.failures, "skip": result.skipped}
    assert list(failed[on_error]) == [1]
    assert sum(map(len, failed.values())) == 1
    check(failed[on_error][1], expected, message)
    assert good_row(result.logits[0])
    assert good_row(result.logits[2])
    if on_error == "skip":
        assert not result.logits[1].any()


@pytest.mark.parametrize("name", ["raising __init__"])
def test_a_request_refused_in_a_session(client: Client, name: str) -> None:
    fields, expected, message = REFUSED[name]
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        good = session.add(GOOD)
        with pytest.raises(expected) as raised:
            session.add(Request(**fields))
        check(raised.value, expected, message)
        logits = torch.zeros(1, VOCAB)
        session.step({good: []}).apply(logits)
        assert good_row(logits[0])


def test_a_class_of_the_wrong_arity_is_refused_on_both_sides(client: Client) -> None:
    with pytest.raises(LogitportError, match="wrong arity of"):
        client.apply(torch.zeros(1, VOCAB), [Request(processors=[(WrongArity, {})])])
    with pytest.raises(RequestsFailed) as raised:
        client.apply(
            torch.zeros(1, VOCAB),
            [Request(processors=[(json.dumps({"callable": dill.dumps(WrongArity, recurse=True).hex()}), {})])],
        )
    check(raised.value.failures[0], PayloadError, "wrong arity of")


# Processors that fail in a step


FAILS = {
    "raises": "raised KeyError: 'banned'",
    "exits": "raised SystemExit: 1",
    "shape": r"returned a tensor of shape \[1, 31\]; .*\[1, 32\]",
}


@pytest.mark.parametrize(
    ("way", "on_error", "by"), [("raises", "abort", "grpc"), ("shape", "skip", "local"), ("exits", "skip", "apply")]
)
def test_a_processor_that_fails(client: Client, way: str, on_error: Any, by: Any) -> None:
    ref = client.register(FailsInWay)
    assert ref.display_name == f"FailsInWay (sha256:{ref.digest[:12]})"
    bad = Request([1], processors=[(AddOne, {}), (FailsInWay, {"way": way})], on_error=on_error)
    if by == "apply":
        result: Any = client.apply(torch.zeros(3, VOCAB), [GOOD, bad, GOOD], check=False)
        logits, culprit = result.logits, 1
    else:
        logits = torch.zeros(3, VOCAB)
        with client.session(vocab_size=VOCAB, dtype=torch.float32, transport=by) as session:
            handles = [session.add(request) for request in (GOOD, bad, GOOD)]
            result, culprit = session.step({handle: [] for handle in handles}).apply(logits, check=False), handles[1]
    failed = {"abort": result.failures, "skip": result.skipped}
    assert list(failed[on_error]) == [culprit]
    assert sum(map(len, failed.values())) == 1
    error = failed[on_error][culprit]
    check(error, ProcessorFailed, f"processor {re.escape(ref.display_name)} {FAILS[way]}")
    assert error.processor == ref.display_name
    if way == "raises":
        assert "in look_up" in error.remote_traceback
        assert error.remote_traceback.rstrip().endswith("KeyError: 'banned'")
        assert "Remote traceback" in str(error)
    assert good_row(logits[0])
    assert good_row(logits[2])
    if on_error == "skip":
        assert not logits[1].any()


class ReturnsFloat64(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.double() / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_float64_result_is_cast_back(client: Client, dtype: torch.dtype) -> None:
    logits = torch.linspace(-4, 4, VOCAB).to(dtype)[None]
    result = client.apply(logits, [Request(processors=[(ReturnsFloat64, {})])])
    assert torch.equal(result.logits, (logits.double() / 3).to(dtype))


def test_a_failed_request_stays_failed_and_the_others_go_on(client: Client) -> None:
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        bad, good = session.add(Request(processors=[(FailsInWay, {"way": "raises"})])), session.add(GOOD)
        for _ in range(2):
            logits = torch.zeros(2, VOCAB)
            with pytest.raises(RequestsFailed, match="KeyError") as raised:
                session.step({bad: [], good: []}).apply(logits)
            assert list(raised.value.failures) == [bad]
            assert good_row(logits[1])
        session.remove(bad)
        session.step({good: []}).apply(torch.zeros(1, VOCAB))
