"""Conformance suite of executors: processors behave and fail alike in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    History,
    InvalidArgument,
    ProcessorFailed,
    RowEdits,
    StateLost,
)
from logitport.core.row_events import read_values
from logitport.edits import EditKind
from logitport_builtins import BUILTIN_EDITS
from logitport_session.dialects import RequestContext
from logitport_session.dialects.base import by_row
from logitport_session.processor_sources.source import Source
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport_server.executors.base import Executor
    from logitport_session.dialects import Dialect

    Ship = Callable[..., Source]

VOCAB = 1024
OPERATIONS = st.lists(st.one_of(st.integers(0, VOCAB - 1), st.sampled_from(["step", "cut", "rebuild"])), max_size=12)


class DeniesHistory(EditProcessor):
    """Denies the ids that it was notified of, and asserts that they equal the history."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        if "bad" in params:
            raise InvalidArgument("bad is not good")
        if "worse" in params:
            raise KeyError("worse")

    def start(self, request: EditRequest) -> None:
        if request.params.get("never"):
            raise ValueError("never starts")
        request.state = request.history.token_ids.tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        if token_id == request.params.get("bomb"):
            raise ValueError("boom")
        request.state.append(token_id)

    def rewind(self, request: EditRequest) -> None:
        del request.state[len(request.history) :]

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        assert request.state == request.history.token_ids.tolist()
        if request.params.get("raise"):
            raise ZeroDivisionError("zero")
        if request.state:
            edits.deny(request.state)
        edits.bias([1, 2], [0.5, -0.5])


class EveryEdit(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        kind = request.params["kind"]
        if kind == "deny":
            edits.deny([3, 1])
        elif kind == "allow":
            edits.allow([5])
        elif kind == "allow none":
            edits.allow([])
        elif kind == "force":
            edits.force(7)
        elif kind == "bias":
            edits.bias([4], [1.5])
        elif kind == "bitmask":
            edits.bitmask(np.arange(32, dtype=np.int32))
        elif kind == "many":
            edits.deny([1])
            edits.bias([2], [-2.0])
            edits.allow([1, 2])
        elif kind == "outside":
            edits.deny([VOCAB])


class AddLength(CustomLogitProcessor):
    """Adds the length of the history. With the parameter "count" it also counts its calls."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, params in enumerate(custom_param_list):
            req = params["__req__"]
            if params.get("count"):
                params["calls"] = params.get("calls", 0) + 1
            logits[row] += len(req.origin_input_ids) + len(req.output_ids)
        return logits


class Returns(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        how = custom_param_list[0]["how"]
        if how == "raises":
            logits.zero_()
            raise ZeroDivisionError("zero")
        results = {
            "new": logits + 1,
            "double": logits.double() + 1,
            "half": (logits + 1).half(),
            "view": logits.flip(0),
        }
        return results[how]


class DeniesContext(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([len(request.tokenizer_id), *request.eos_token_ids, request.history.draft_tokens])


class Remembers(CustomLogitProcessor):
    """Keeps state in the instance."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        self.calls += 1
        return logits + self.calls


class TrackedRequest:
    """A request that notifies its dialect of history changes."""

    def __init__(
        self, dialect: Dialect, prompt: list[int], params: dict[str, Any] | None = None, output: list[int] | None = None
    ) -> None:
        self.dialect = dialect
        self.history = History(prompt, output or [])
        self.state = dialect.start(RequestContext("r", self.history, {"top_k": 3}, VOCAB), params or {})
        self.advance = dialect.token_callback(self.state)

    def append(self, token_id: int) -> None:
        self.history.append(token_id)
        if self.advance is not None:
            self.advance(token_id)

    def cut(self, length: int) -> None:
        self.history.rewind(length)
        self.dialect.rewind(self.state)


def denied(dialect: Dialect, *requests: TrackedRequest) -> list[list[int]]:
    row_edits = by_row(dialect.edit([one.state for one in requests]), len(requests))
    return [[int(i) for kind, ids, _ in row if kind is EditKind.DENY for i in ids] for row in row_edits]


def process(dialect: Dialect, logits: torch.Tensor, *requests: TrackedRequest) -> torch.Tensor:
    return dialect.process([one.state for one in requests], logits)


@pytest.mark.parametrize("name", BUILTIN_EDITS)
def test_built_ins_run_in_this_process(executor: Executor, name: str) -> None:
    dialect = executor.load(Source(name, installed=BUILTIN_EDITS[name]))
    assert not dialect.shipped
    assert not dialect.isolated
    assert not dialect.reads_logits


@settings(max_examples=examples(15))
@given(prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4), operations=OPERATIONS)
def test_state_follows_the_history(executor: Executor, ship: Ship, prompt: list[int], operations: list[Any]) -> None:
    dialect = executor.load(ship(DeniesHistory))
    request, other = TrackedRequest(dialect, prompt), TrackedRequest(dialect, [9], output=[8])
    for operation in operations:
        if operation == "step":
            assert denied(dialect, request, other) == [request.history.token_ids.tolist(), [9, 8]]
        elif operation == "cut":
            request.cut(max(len(prompt), len(request.history) - 2))
        elif operation == "rebuild":
            request.history.append(1)
            dialect.rebuild(request.state)
        else:
            request.append(operation)
    assert denied(dialect, other, request) == [[9, 8], request.history.token_ids.tolist()]


def test_one_request_in_several_rows(executor: Executor, ship: Ship) -> None:
    dialect = executor.load(ship(DeniesHistory))
    request = TrackedRequest(dialect, [3])
    request.append(4)
    assert denied(dialect, request, request, request) == [[3, 4]] * 3


def test_the_context_has_tokenizer_eos_ids_and_drafts(executor: Executor, ship: Ship) -> None:
    dialect = executor.load(ship(DeniesContext))
    default, request = TrackedRequest(dialect, [3]), TrackedRequest(dialect, [3])
    request.state = dialect.start(RequestContext("r", request.history, {}, VOCAB, "a/tokenizer", (7, 9)), {})
    request.advance = dialect.token_callback(request.state)
    assert denied(dialect, default, request) == [[0, 0], [11, 7, 9, 0]]
    for drafts in (1, 2):
        request.history.draft_tokens = drafts
        request.append(5)
        assert denied(dialect, request, default) == [[11, 7, 9, drafts], [0, 0]]
    request.cut(2)
    assert denied(dialect, request) == [[11, 7, 9, 1]]
    request.cut(1)
    request.append(6)
    assert denied(dialect, request, default) == [[11, 7, 9, 0], [0, 0]]


@pytest.mark.parametrize("kind", ["deny", "allow", "allow none", "force", "bias", "bitmask", "many", "nothing"])
def test_edits_arrive_unchanged(executor: Executor, ship: Ship, kind: str) -> None:
    dialect = executor.load(ship(EveryEdit))
    assert not dialect.reads_logits
    requests = [TrackedRequest(dialect, [1], {"kind": kind}), TrackedRequest(dialect, [1], {"kind": "nothing"})]
    row_edits, expected = by_row(dialect.edit([one.state for one in requests]), 2), RowEdits()
    EveryEdit().edit(EditRequest({"kind": kind}, History([1]), VOCAB), expected)
    flat = [
        [(kind, ids.tolist(), None if values is None else values.tolist()) for kind, ids, values in row]
        for row in (row_edits[0], expected)
    ]
    assert flat[0] == flat[1]
    assert not row_edits[1]


class Reports(EditProcessor):
    """Reports events, also more than are kept, and raises for one of its requests."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        for index in range(request.params["events"]):
            edits.event("seen", index=index, text="é\\")
        if request.params.get("boom"):
            raise ValueError("boom")


def test_events_arrive_with_their_rows(executor: Executor, ship: Ship) -> None:
    dialect = executor.load(ship(Reports))
    requests = [TrackedRequest(dialect, [1], {"events": count}) for count in (0, 1, 6)]
    dialect.edit([one.state for one in requests])
    found = [(row, event.name, event.left_out) for row, event in dialect.events]
    assert found == [(1, "seen", 0), *[(2, "seen", 0)] * 4, (2, "", 2)]
    assert read_values("seen", dialect.events[4][1].values) == {"index": 3, "text": "é\\"}
    dialect.edit([requests[0].state])
    assert not dialect.events


def test_errors_of_one_request(executor: Executor, ship: Ship) -> None:
    dialect = executor.load(ship(DeniesHistory))
    with pytest.raises(InvalidArgument, match="bad is not good"):
        dialect.validate({"bad": 1}, {})
    with pytest.raises((KeyError, ProcessorFailed), match="worse"):
        dialect.validate({"worse": 1}, {})
    with pytest.raises((ValueError, ProcessorFailed), match="never starts"):
        TrackedRequest(dialect, [1], {"never": True})
    raising = TrackedRequest(dialect, [1], {"raise": True})
    with pytest.raises((ZeroDivisionError, ProcessorFailed), match="zero"):
        denied(dialect, raising)
    assert denied(dialect, TrackedRequest(dialect, [2])) == [[2]]


def test_logits(executor: Executor, ship: Ship) -> None:
    dialect = executor.load(ship(AddLength))
    assert dialect.reads_logits
    first, second = TrackedRequest(dialect, [1, 2]), TrackedRequest(dialect, [3])
    second.append(4)
    second.append(5)
    second.append(6)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for rows in (2, 1, 2):
            result = process(dialect, torch.zeros(rows, VOCAB, dtype=dtype), *(first, second)[:rows])
            assert result.dtype == dtype
            assert result[:, 0].tolist() == [2.0, 4.0][:rows]
            assert (result == result[:, :1]).all()
    second.cut(2)
    assert process(dialect, torch.zeros(2, VOCAB), first, second)[:, 0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("how", ["new", "double", "half", "view"])
def test_kinds_of_results(executor: Executor, ship: Ship, how: str) -> None:
    dialect = executor.load(ship(Returns))
    requests = [TrackedRequest(dialect, [1], {"how": how}) for _ in range(2)]
    logits = torch.tensor([[1.0] * VOCAB, [2.0] * VOCAB])
    expected = [2.0, 1.0] if how == "view" else [2.0, 3.0]
    assert process(dialect, logits, *requests)[:, 5].tolist() == expected


def test_an_error_does_not_affect_the_next_call(executor: Executor, ship: Ship) -> None:
    dialect = executor.load(ship(Returns))
    with pytest.raises((ZeroDivisionError, ProcessorFailed), match="zero"):
        process(dialect, torch.ones(1, VOCAB), TrackedRequest(dialect, [1], {"how": "raises"}))
    assert process(dialect, torch.ones(1, VOCAB), TrackedRequest(dialect, [1], {"how": "new"}))[0, 0] == 2


class UsesTorch(CustomLogitProcessor):
    """Common torch operations."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        torch.manual_seed(1)
        probabilities = torch.softmax(logits.half().float(), -1)
        chosen = torch.multinomial(probabilities, 2)
        values, _ = torch.topk(logits, 3)
        table = torch.randn(logits.shape[1], 32).to(torch.bfloat16)
        hidden = torch.nn.functional.linear(logits.to(torch.bfloat16), table.T)
        torch.sort(logits, descending=True)
        torch.cumsum(probabilities, -1)
        torch.linalg.norm(hidden.float())
        torch.fft.rfft(logits.float())
        logits.scatter_(1, chosen, 0.0)
        logits.masked_fill_(logits < values[:, -1:], 0.0)
        return torch.where(logits.isnan(), logits, torch.full_like(logits, 3.0))


def test_common_torch_operations(executor: Executor, ship: Ship) -> None:
    dialect = executor.load(ship(UsesTorch))
    for rows in (1, 700):  # torch uses one thread for few rows, several for many
        request = TrackedRequest(dialect, [1])
        assert (process(dialect, torch.rand(rows, VOCAB), *[request] * rows) == 3).all()


def test_state_that_does_not_follow_from_the_history(executor: Executor, ship: Ship) -> None:
    dialect = executor.load(ship(AddLength))
    counting, plain = TrackedRequest(dialect, [1], {"count": True}), TrackedRequest(dialect, [1])
    dialect.check_rebuildable(counting.state)
    process(dialect, torch.zeros(2, VOCAB), counting, plain)
    dialect.check_rebuildable(plain.state)
    for method in (dialect.check_rebuildable, dialect.rewind, dialect.rebuild):
        with pytest.raises(StateLost):
            method(counting.state)


def test_state_in_the_instance(executor: Executor, ship: Ship) -> None:
    first, second = executor.load(ship(Remembers)), executor.load(ship(Remembers))
    request, other = TrackedRequest(first, [1]), TrackedRequest(second, [1])
    for calls in (1, 2):
        assert process(first, torch.zeros(1, VOCAB), request)[0, 0] == calls
    assert process(second, torch.zeros(1, VOCAB), other)[0, 0] == 1  # each loaded processor has its own instance
    with pytest.raises(StateLost):
        first.check_rebuildable(request.state)


def test_loads_are_counted(executor: Executor, ship: Ship) -> None:
    before = executor.hits, executor.misses

    class Fresh(AddLength):
        executor_name = f"{type(executor).__name__}"

    for _ in range(3):
        executor.load(ship(Fresh, tenant="fresh"))
    assert (executor.hits - before[0], executor.misses - before[1]) == (2, 1)
