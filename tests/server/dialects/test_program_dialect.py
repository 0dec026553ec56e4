"""Programs in the server's process: equal to the runner, with histories that grow, are drafted and cut back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from logitport import InvalidArgument, LimitExceeded, ProcessorFailed
from logitport.core.history import History
from logitport_programs.parameters import MAX_TOKEN_ID, Columns
from logitport_programs.program import Parameter
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.types import Element, Size
from logitport_session.dialects import Dialect, RequestContext, program_dialect
from logitport_session.dialects.base import States
from logitport_session.dialects.program_dialect import ProgramDialect
from logitport_session.dialects.shared_runner import SharedRunner
from tests.programs.runtime import build
from tests.programs.runtime.memory import plan_of

VOCAB = 50


def context(history: History, vocab_size: int = VOCAB) -> RequestContext:
    return RequestContext("r", history, {}, vocab_size)


def random_logits(rows: int, width: int = VOCAB) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


def states_of(dialect: Dialect, params: list[dict[str, Any]], histories: list[History] | None = None) -> States:
    histories = histories or [History() for _ in params]
    return States(dialect.start(context(history), each) for history, each in zip(histories, params, strict=True))


def test_lists_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are padded for the rows of a part only."""
    write = build.Writer()
    removed = write("expand", write.full(-torch.inf), shape=(Size(constant=3),))
    write("scatter_drop", write("logits"), write("parameter", parameter="ids"), removed)
    ids = Parameter("ids", Element.INT64, 0.0, 0, MAX_TOKEN_ID, 3)
    dialect = ProgramDialect(write.verified(ids), "x")
    monkeypatch.setattr(program_dialect, "_RUNNER", SharedRunner(max_work=1))
    states = states_of(dialect, [{"ids": [1]}, {}, {"ids": [4, 2, 0]}])
    for _ in range(2):
        logits = dialect.process(states, torch.zeros(3, VOCAB))
        assert [row.isinf().nonzero().flatten().tolist() for row in logits] == [[1], [], [0, 2, 4]]


def test_histories_grow_and_are_cut_back() -> None:
    verified = build.repetition_penalty(4)
    dialect = ProgramDialect(verified, "penalty")
    history = History([1, 2], [3])
    states = states_of(dialect, [{"penalty": 2.0}], [history])
    assert dialect.token_callback(states[0]) is None

    def check() -> None:
        logits, expected = random_logits(1), random_logits(1)
        dialect.process(states, logits)
        Runner().apply(verified, expected, slice(None), [{"penalty": 2.0}], [RequestTokens(history)])
        assert torch.equal(logits, expected)

    check()
    history.extend([4, 4, 7])
    check()
    history.rewind(4)
    dialect.rewind(states[0])
    history.append(9)
    check()
    dialect.rebuild(states[0])
    check()


def test_only_programs_that_read_histories_follow_drafts() -> None:
    assert ProgramDialect(build.min_p(), "x").takes_drafts
    assert not ProgramDialect(build.repetition_penalty(4), "x").takes_drafts


@pytest.mark.parametrize("params", [{}, {"min_p": 2.0}, {"min_p": "x"}, {"min_p": 0.5, "other": 1}])
def test_parameters_are_checked(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        ProgramDialect(build.min_p(), "x").validate(params, {})
    ProgramDialect(build.min_p(), "x").validate({"min_p": 0.5}, {})


@pytest.mark.parametrize("deferred", [False, True])
def test_a_width_that_does_not_fit(deferred: bool) -> None:
    dialect = ProgramDialect(build.top_k(k=40), "x")
    if deferred:
        dialect = dialect.for_engine() or dialect
    dialect.start(context(History(), 40), {})
    for width in (39, 39):
        with pytest.raises(InvalidArgument, match="39 logits"):
            dialect.start(context(History(), width), {})


def test_the_place_of_a_program_that_the_engine_runs() -> None:
    dialect = ProgramDialect(build.min_p(), "x")
    dialect.key = "digest"
    deferred = dialect.for_engine()
    assert deferred is not None
    assert deferred is dialect.for_engine()
    assert deferred.on_server is dialect
    assert (deferred.reads_logits, deferred.key, deferred.name) == (False, "digest", "x")
    assert deferred.engine_program == build.min_p().program
    assert (dialect.engine_program, dialect.on_server) == (None, dialect)
    assert deferred.for_engine() is None
    with pytest.raises(InvalidArgument):
        deferred.validate({}, {})


def test_rows_run_in_parts_with_equal_results() -> None:
    verified, params = build.top_p(), [{"top_p": row / 20} for row in range(20)]
    logits, expected = random_logits(20), random_logits(20)
    Runner().apply(verified, expected, slice(None), params)
    failed = SharedRunner(max_work=1).apply(verified, logits, Columns.checked(verified, params).part, ())
    assert not failed
    assert torch.equal(logits, expected)


def test_failed_rows_of_parts_have_the_numbers_of_the_call() -> None:
    write = build.Writer()
    write("divide", write("logits"), write.parameter("by"))
    verified = write.verified(Parameter("by", Element.FLOAT32, 1.0, 0.0, 9.0))
    columns = Columns.checked(verified, [{"by": row % 3} for row in range(1, 8)])
    failed = SharedRunner(max_work=1).apply(verified, torch.zeros(7, VOCAB), columns.part, ())
    assert list(failed) == [2, 5]


def test_fewer_rows_run_at_once_if_the_memory_is_limited() -> None:
    verified, params = build.min_p(), [{"min_p": 0.1}] * 64
    needed = plan_of(Runner(), verified, range(64), random_logits(64)).bytes
    logits, expected = random_logits(64), random_logits(64)
    Runner().apply(verified, expected, slice(None), params)
    SharedRunner(max_bytes=needed // 8).apply(verified, logits, Columns.checked(verified, params).part, ())
    assert torch.equal(logits, expected)
    with pytest.raises(LimitExceeded):
        SharedRunner(max_bytes=16).apply(verified, logits, Columns.checked(verified, params).part, ())


def test_numpy_logits_have_the_same_results_and_limits() -> None:
    verified, params = build.top_p(), [{"top_p": row / 20} for row in range(20)]
    logits, expected = random_logits(20).numpy(), random_logits(20)
    columns = Columns.checked(verified, params).part
    Runner().apply(verified, expected, slice(None), params)
    assert not SharedRunner(max_work=1).apply(verified, logits, columns, ())
    np.testing.assert_array_equal(logits, expected.numpy())
    before = logits.copy()
    with pytest.raises(LimitExceeded, match="the limit is 16"):
        SharedRunner(max_bytes=16).apply(verified, logits, columns, ())
    np.testing.assert_array_equal(logits, before)
    failed = SharedRunner(max_work=1).apply(verified, logits, columns, (), seconds=0.0)
    assert list(failed)[-1] == 19
    assert min(failed) >= 1, "the first part always runs"


def test_rows_that_are_left_when_the_time_is_up_fail() -> None:
    verified, logits = build.top_k(), random_logits(5)
    shared = SharedRunner(max_work=1)
    failed = shared.apply(verified, logits, Columns(verified, [()] * 5).part, (), seconds=0.0)
    assert list(failed)[-1] == 4
    assert {type(error) for error in failed.values()} == {ProcessorFailed}
    first = min(failed)
    assert first >= 1, "the first part always runs"
    assert torch.equal(logits[first:], random_logits(5)[first:])
    assert (logits[0] == -torch.inf).sum() == VOCAB - build.K


def test_other_threads_run_programs_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a program runs on many rows, the memory of the runner is free after each part."""
    shared = SharedRunner(max_work=1)
    verified, apply, order = build.top_k(), Runner.apply, []

    def recorded(self: Runner, verified: Any, logits: torch.Tensor, rows: slice, *rest: Any) -> Any:
        assert shared._lock.locked()
        order.append(rows.start)
        return apply(self, verified, logits, rows, *rest)

    def columns(begin: int, end: int) -> Columns:
        assert not shared._lock.locked()
        return Columns(verified, [()] * (end - begin))

    monkeypatch.setattr(Runner, "apply", recorded)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    shared.apply(verified, random_logits(6), columns, ())
    assert order == [*range(6)]


def test_a_program_that_may_take_too_long_is_refused_at_its_start() -> None:
    dialect = ProgramDialect(build.min_p(), "slow", limit_ms=1e-6)
    with pytest.raises(LimitExceeded, match=r"the limit is 1e-06 ms.*, or raise the limit \(--program-milliseconds\)"):
        dialect.start(context(History()), {"min_p": 0.1})
    deferred = dialect.for_engine()
    assert deferred is not None
    deferred.start(context(History()), {"min_p": 0.1})  # the engine has a limit of its own
    ProgramDialect(build.min_p(), "fast").start(context(History()), {"min_p": 0.1})
