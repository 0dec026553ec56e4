"""Turns in a step: when the session hands over the turn in which it computes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, RowEdits
from logitport_server.executors.flight import Flight
from logitport_session.steps.grouping import Group, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.turns import ITEMS_PER_PAUSE, Turn, Turns
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

VOCAB = 10


class Record(EditProcessor):
    """Records the number of rows of each call; runs a function before the first, and in each `advance`."""

    calls: ClassVar[list[object]] = []
    before: ClassVar[list[Callable[[], object]]] = []

    def advance(self, request: EditRequest, token_id: int) -> None:
        if type(self).before:
            type(self).before.pop()()
        type(self).calls.append(token_id)

    def edit_batch(self, requests: Sequence[EditRequest], edits: Sequence[RowEdits]) -> None:
        if type(self).before:
            type(self).before.pop()()
        type(self).calls.append(len(requests))
        super().edit_batch(requests, edits)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.history.token_ids[:1].tolist())


class Waits(EditProcessor):
    """Waits in its call, as a processor that is installed and takes long."""

    takes_long = True
    other: ClassVar[threading.Event] = threading.Event()

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        assert self.other.wait(SECONDS)


class Reads(CustomLogitProcessor):
    """Waits in its call, as a processor that computes outside the interpreter."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        assert Waits.other.wait(SECONDS)
        return logits


@pytest.fixture(autouse=True)
def no_calls() -> None:
    Record.calls.clear()
    Record.before.clear()
    Waits.other.clear()


@pytest.fixture
def turns() -> Turns:
    return Turns(slice_seconds=0.0)


@pytest.fixture
def other(turns: Turns) -> Iterator[Callable[[], None]]:
    """Starts a thread of another principal, and returns when it waits for its turn. It records "other" in a turn."""

    def compute() -> None:
        with turns.of("other"):
            Record.calls.append("other")
            Waits.other.set()

    with ThreadPoolExecutor() as pool:

        def start() -> None:
            pool.submit(compute)
            wait_until(lambda: turns.waiting)

        yield start


def test_between_calls_of_processors(open_engine: Any, turns: Turns, other: Callable[[], None]) -> None:
    engine = open_engine(VOCAB, Record)
    known = engine.add(0, [("Record", {})] * 3, [1])
    Record.before.append(other)
    with turns.of("engine"):
        engine.step({known: []})
    assert Record.calls == [1, "other", 1, 1]


def test_between_parts_of_a_large_call(open_engine: Any, turns: Turns, other: Callable[[], None]) -> None:
    engine = open_engine(VOCAB, Record, max_requests_per_session=600)
    known = [engine.add(slot, [("Record", {})], [slot % VOCAB]) for slot in range(600)]
    Record.before.append(other)
    with turns.of("engine"):
        reply = engine.step({one: [] for one in known})
    assert Record.calls == [256, "other", 256, 88]
    assert engine.denied(reply, 600) == [[slot % VOCAB] for slot in range(600)]


@pytest.mark.parametrize("part", ["edits", "applied", "names"])
def test_between_the_results_of_many_small_groups(turns: Turns, other: Callable[[], None], part: str) -> None:
    dialect: Any = SimpleNamespace(key="key", name="name")
    outcome = StepOutcome([(Group(dialect), [RowEdits()]) for _ in range(200)])
    with turns.of("engine"):
        other()
        getattr(outcome, part)
        assert Record.calls == ["other"]


def joined_edits() -> int:
    dialect: Any = SimpleNamespace(key="key", name="name")
    rows: Any = [SimpleNamespace(index=index) for index in range(200)]
    return len(StepOutcome([(Group(dialect, rows), [RowEdits() for _ in rows])]).edits)


def groups_of_rows() -> int:
    row: Any = SimpleNamespace(request=SimpleNamespace(failure=None, chain=[SimpleNamespace(dialect=None, state=None)]))
    return len(Rows([row] * 200).groups)


@pytest.mark.parametrize(("compute", "result"), [(joined_edits, 0), (groups_of_rows, 1)])
def test_two_principals_compute_in_turns(turns: Turns, compute: Callable[[], int], result: int) -> None:
    """A lock that one of them held during its pause would stop both."""

    def in_turn(principal: str) -> int:
        with turns.of(principal):
            started.wait(SECONDS)
            return compute()

    started = threading.Event()
    with ThreadPoolExecutor() as pool:
        computed = [pool.submit(in_turn, principal) for principal in ("one", "another")]
        wait_until(lambda: turns.waiting)
        started.set()
        assert [one.result(SECONDS) for one in computed] == [result, result]


def test_between_new_ids(open_engine: Any, turns: Turns, other: Callable[[], None]) -> None:
    engine = open_engine(VOCAB, Record)
    known = engine.add(0, [("Record", {})], [1])
    Record.before.append(other)
    with turns.of("engine"):
        engine.step({known: [5] * 200})
    assert Record.calls == [*[5] * ITEMS_PER_PAUSE, "other", *[5] * (200 - ITEMS_PER_PAUSE), 1]


def test_during_a_call_that_takes_long(open_engine: Any, turns: Turns, other: Callable[[], None]) -> None:
    engine = open_engine(VOCAB, Record, Waits)
    known = engine.add(0, [("Waits", {})], [1])
    with turns.of("engine"):
        other()
        assert not engine.step({known: []}).failures


def test_during_a_call_that_reads_logits(open_engine: Any, turns: Turns, other: Callable[[], None]) -> None:
    engine = open_engine(VOCAB, Reads)
    known = engine.add(0, [("Reads", {})], [1])
    engine.step({known: []})
    with turns.of("engine"):
        other()
        assert not engine.process(1)[1].failures


def test_while_the_step_waits_for_workers(turns: Turns, other: Callable[[], None]) -> None:
    with turns.of("engine"):
        other()
        with Flight([], 1.0) as flight:
            flight.wait()
        assert Record.calls == ["other"]


def test_the_wait_for_the_next_turn_is_not_charged_to_workers(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("logitport_server.executors.flight.time.monotonic", lambda: clock[0])
    acquire = Turn.acquire

    def slow(turn: Turn) -> None:
        acquire(turn)
        clock[0] += 5.0

    with turns.of("engine"):
        monkeypatch.setattr(Turn, "acquire", slow)
        with Flight([], 1.0) as flight:
            flight.wait()
            assert clock[0] == 5.0
            assert flight.waited == 0.0
