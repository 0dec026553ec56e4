"""vLLM's dialect of single requests: adapters, functions, callable classes, and failing rows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from logitport import History, InvalidArgument
from logitport.dialects import InDialect
from logitport_session.dialects import RequestContext, make_dialect
from logitport_session.stubs.vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_session.dialects import Dialect

VOCAB = 8


class Adapter(AdapterLogitsProcessor):
    """Creates its callables with a function of the request's parameters."""

    make: ClassVar[Any]

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        return type(self).make(params.extra_args or {})


def adapter(make_one: Callable[[dict[str, Any]], Any]) -> type[Adapter]:
    class Made(Adapter):
        make = staticmethod(make_one)

    return Made


def shipped_dialect(processor: Any) -> Dialect:
    return make_dialect(processor, "its name", shipped=True)


class DialectRequest:
    def __init__(self, dialect: Dialect, params: dict[str, Any] | None = None, **sampling_params: Any) -> None:
        self.dialect, self.history = dialect, History([1, 2])
        self.state = dialect.start(RequestContext("r", self.history, sampling_params, VOCAB), params or {})
        self.advance: Any = dialect.token_callback(self.state)

    def append(self, *token_ids: int) -> None:
        for token_id in token_ids:
            self.history.append(token_id)
            self.advance(token_id)


def step(dialect: Dialect, *requests: DialectRequest) -> list[list[float]]:
    rows: list[list[float]] = dialect.process(
        [one.state for one in requests], torch.zeros(len(requests), VOCAB)
    ).tolist()
    return rows


def marked(*at: int) -> list[float]:
    return [float(index in at) for index in range(VOCAB)]


def mark_last(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Changes its argument in place and returns it."""
    if output_ids:
        logits[output_ids[-1]] += 1
    return logits


def mark_all(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Returns another tensor."""
    return logits.index_fill(0, torch.tensor([*prompt_ids, *output_ids]), 1.0)


class MarksAll:
    """Keeps the lengths of its outputs, to detect a call for another request."""

    def __init__(self, extra: int = 0) -> None:
        self.extra, self.calls = extra, list[int]()

    def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        assert self.calls == sorted(self.calls)
        assert all(length <= len(output_ids) for length in self.calls)
        self.calls.append(len(output_ids))
        return mark_all(prompt_ids, [*output_ids, self.extra], logits)


def mark_also(extra: int, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[extra] += 1
    return mark_last(output_ids, logits)


def mark_named(output_ids: list[int], logits: torch.Tensor, extra: int) -> torch.Tensor:
    return mark_also(extra, output_ids, logits)


@pytest.mark.parametrize(
    ("function", "marks"),
    [
        (mark_last, (4,)),
        (mark_all, (1, 2, 3, 4)),
        (functools.partial(mark_also, 7), (4, 7)),
        (functools.partial(mark_named, extra=7), (4, 7)),
    ],
)
def test_a_function_gets_the_ids_and_the_row_of_its_request(function: Any, marks: tuple[int, ...]) -> None:
    dialect = shipped_dialect(function)
    one, other = DialectRequest(dialect), DialectRequest(dialect)
    one.append(3)
    other.append(3, 4)
    alone = step(dialect, one)
    assert step(dialect, other, one, other) == [marked(*marks), *alone, marked(*marks)]


@pytest.mark.parametrize("shipped", [MarksAll, MarksAll(), functools.partial(MarksAll, extra=0)])
def test_each_request_has_its_own_instance_of_a_callable_class(shipped: Any) -> None:
    dialect = shipped_dialect(InDialect(shipped, "vllm"))
    one, other = DialectRequest(dialect), DialectRequest(dialect)
    one.append(3, 4)
    assert step(dialect, one, other) == [marked(0, 1, 2, 3, 4), marked(0, 1, 2)]
    other.append(6)
    assert step(dialect, one, other) == [marked(0, 1, 2, 3, 4), marked(0, 1, 2, 6)]


def test_a_function_rejects_parameters() -> None:
    dialect = shipped_dialect(mark_last)
    dialect.validate({}, {"extra_args": {"for": "others"}})
    with pytest.raises(InvalidArgument, match=r"\['by'\]: send none"):
        dialect.validate({"by": 1}, {})


def test_an_adapter_creates_a_callable_for_each_request() -> None:
    def make(extra_args: dict[str, Any]) -> Any:
        marked_id = extra_args.get("mark")
        if marked_id is None:
            return None

        def mark(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            logits[marked_id] += 1
            return mark_last(output_ids, logits)

        return mark

    dialect = shipped_dialect(adapter(make))
    marks, does_not = DialectRequest(dialect, {"mark": 5}), DialectRequest(dialect, temperature=0.5)
    marks.append(6)
    does_not.append(6)
    assert step(dialect, does_not, marks) == [marked(), marked(5, 6)]
    assert DialectRequest(dialect, extra_args={"mark": 3}).state.call is not None


def test_after_a_rewind_the_callable_is_new() -> None:
    made = []

    def make(_: Any) -> Any:
        made.append(MarksAll())
        return made[-1]

    dialect = shipped_dialect(adapter(make))
    request = DialectRequest(dialect)
    request.append(3, 4, 5)
    step(dialect, request)
    request.history.rewind(3)
    dialect.rewind(request.state)
    assert step(dialect, request) == [marked(0, 1, 2, 3)]
    assert [one.calls for one in made] == [[3], [1]]
    request.history.append(6)
    dialect.rebuild(request.state)
    assert step(dialect, request) == [marked(0, 1, 2, 3, 6)]
    dialect.check_rebuildable(request.state)


def fails_with(extra_args: dict[str, Any]) -> Any:
    """Create a callable that returns an invalid result, or raises."""
    wrong = extra_args.get("wrong")

    def act(output_ids: list[int], logits: torch.Tensor) -> Any:
        if wrong == "raise":
            raise SystemExit("boom")
        if wrong == "reshape":
            return logits.unsqueeze_(0)
        results = {None: logits + 1, "none": None, "shape": logits[1:], "list": logits.tolist(), "int": logits.long()}
        return results[wrong]

    return act


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("raise", "boom"),
        ("none", "returned NoneType"),
        ("shape", r"shape \[7\]"),
        ("reshape", r"shape \[1, 8\]"),
        ("list", "returned list"),
        ("int", "dtype torch.int64"),
    ],
)
def test_a_failing_row_does_not_affect_other_rows(wrong: str, error: str) -> None:
    dialect = shipped_dialect(adapter(fails_with))
    right, bad = DialectRequest(dialect), DialectRequest(dialect, {"wrong": wrong})
    rows = step(dialect, right, bad, right)
    assert list(dialect.failed) == [1]
    with pytest.raises(BaseException, match=error):
        raise dialect.failed[1]
    assert [rows[0], rows[2]] == [[1.0] * VOCAB] * 2
    assert step(dialect, right) == [[1.0] * VOCAB]
    assert dialect.failed == {}


def test_an_adapter_that_raises_rejects_the_request() -> None:
    dialect = shipped_dialect(adapter(lambda extra_args: extra_args["missing"]))
    with pytest.raises(KeyError):
        DialectRequest(dialect)
