"""Calls in workers that run at the same time."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from logitport import EditProcessor, History, ProcessorFailed
from logitport_server.executors.calls.remote_dialect import RemoteDialect
from logitport_server.executors.calls.worker_calls import WorkerCalls
from logitport_session.dialects import RequestContext
from logitport_session.dialects.base import States
from logitport_session.dialects.failures import WorkerLost
from logitport_session.requests.active_request import ActiveRequest, ChainEntry
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime
from logitport_session.trust.isolation import RemoteCall
from tests.server.executors.conftest import SHORT_CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logitport import EditRequest, RowEdits
    from logitport_runner.process_executor import ProcessExecutor
    from logitport_session.processor_sources.source import Source

    Ship = Callable[..., Source]
    Recorded = Callable[[str, list[str]], "RecordedWorker"]

VOCAB = 64


class DenyGiven(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.params["ids"])


class Exits(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(7)


class SleepsAndRaises(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        time.sleep(request.params["seconds"])
        raise ValueError("after the sleep")


class StartsOnce(EditProcessor):
    """Its state cannot be built in a second process."""

    def start(self, request: EditRequest) -> None:
        if len(request.history) > 1:
            time.sleep(3600)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([3])


def hanging(number: int) -> type[EditProcessor]:
    class Hangs(EditProcessor):
        which = number

        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            time.sleep(3600)

    return Hangs


def request_of(dialects: Sequence[Any], slot: int, params: dict[str, Any]) -> ActiveRequest:
    context = RequestContext(f"r{slot}", History([1]), {}, VOCAB)
    chain = [ChainEntry(dialect, dialect.start(context, params)) for dialect in dialects]
    return ActiveRequest(slot, 0, context.history, chain, skip=False)


def step(requests: Sequence[ActiveRequest], seconds: float = 60.0) -> StepOutcome:
    outcome = StepOutcome()
    run(Rows([Row(at, request) for at, request in enumerate(requests)]), {}, VOCAB, None, outcome, StepTime(seconds))
    return outcome


def denied(outcome: StepOutcome) -> dict[int, list[int]]:
    return {row: sorted({int(i) for _, ids, _ in edits for i in ids}) for row, edits in outcome.edits.items()}


class RecordedWorker:
    """A worker that records what is done with it, and answers at the first pump."""

    def __init__(self, name: str, record: list[str]) -> None:
        self.name, self.record = name, record
        self.lock = threading.Lock()
        self.calls: list[RemoteCall] = []
        self.at_pump: Callable[[], object] = lambda: None
        self.read, self.written = os.pipe()
        os.write(self.written, b"x")

    def prepare(self) -> bool:
        return True

    def flush(self) -> Any:
        self.record.append(f"write {self.name}")
        return self if self.calls else None

    def pump(self) -> bool:
        self.record.append(f"read {self.name}")
        for call in self.calls:
            call.result = self.name
        self.calls = []
        self.at_pump()
        return False

    def register(self, poll: Any) -> list[int]:
        poll.register(self.read)
        return [self.read]

    waited_seconds = 0.0


class RecordedDialect:
    source: Any = None

    def __init__(self, worker: RecordedWorker) -> None:
        self.worker = worker

    def post(self, call: RemoteCall, _: float) -> None:
        self.worker.record.append(f"post {self.worker.name}")
        self.worker.calls.append(call)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """Makes recorded workers, and closes their pipes."""
    with ExitStack() as stack:

        def make(name: str, record: list[str]) -> RecordedWorker:
            worker = RecordedWorker(name, record)
            stack.callback(os.close, worker.read)
            stack.callback(os.close, worker.written)
            return worker

        yield make


def test_workers_are_written_to_once_and_before_any_is_read(recorded: Recorded) -> None:
    record: list[str] = []
    workers = [recorded(name, record) for name in "ab"]
    calls: list[Any] = [RemoteCall(RecordedDialect(worker), States(), None) for worker in workers * 2]  # type: ignore[arg-type]
    with WorkerCalls(calls, 60.0) as running:
        running.wait()
    assert [call.result for call in calls] == ["a", "b", "a", "b"]
    assert record[:6] == ["post a", "post a", "write a", "post b", "post b", "write b"]
    assert sorted(record[6:]) == ["read a", "read b"]
    assert not any(worker.lock.locked() for worker in workers)
    assert running.queued == 0


def test_a_busy_worker_delays_no_other_one(recorded: Recorded) -> None:
    record: list[str] = []
    busy, free = recorded("busy", record), recorded("free", record)
    calls: list[Any] = [RemoteCall(RecordedDialect(worker), States(), None) for worker in (busy, free)]  # type: ignore[arg-type]
    busy.lock.acquire()
    free.at_pump = busy.lock.release
    with WorkerCalls(calls, 60.0) as running:
        running.wait()
    assert [call.result for call in calls] == ["busy", "free"]
    assert record.index("read free") < record.index("post busy")
    assert running.queued > 0


def test_a_call_that_waits_for_a_busy_worker_times_out(impatient: ProcessExecutor, ship: Ship) -> None:
    dialect: Any = impatient.load(ship(DenyGiven, tenant="waits"))
    request = request_of([dialect], 0, {"ids": [1]})
    failures = impatient.quarantine.failures
    with dialect.worker.lock:
        outcome = step([request], 0.05)
    with pytest.raises(ProcessorFailed, match="busy"):
        raise outcome.failures[0].error
    assert impatient.quarantine.failures == failures


def test_a_call_behind_one_that_ends_the_worker_is_repeated(workers: ProcessExecutor, ship: Ship) -> None:
    dialects = [workers.load(ship(cls, tenant="behind")) for cls in (Exits, DenyGiven)]
    bad, good = request_of(dialects[:1], 0, {}), request_of(dialects[1:], 1, {"ids": [5]})
    outcome = step([bad, good])
    assert {slot: type(failure.error) for slot, failure in outcome.failures.items()} == {0: ProcessorFailed}
    assert denied(outcome) == {1: [5]}


def test_leaving_the_context_ends_the_calls_that_run(workers: ProcessExecutor, ship: Ship) -> None:
    dialect: Any = workers.load(ship(hanging(0), tenant="left"))
    request, failures = request_of([dialect], 0, {}), workers.quarantine.failures
    with WorkerCalls([RemoteCall(dialect, States([request.chain[0].state]), None)], 60.0):
        pass
    assert not dialect.worker.lock.locked()
    assert not dialect.worker.pending
    assert workers.quarantine.failures == failures, "the processor is charged for a call that was abandoned"
    assert workers.load(ship(DenyGiven, tenant="left"))


@pytest.mark.parametrize("share_a_worker", [True, False])
def test_many_processors_that_hang_take_one_deadline(
    impatient: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch, share_a_worker: bool
) -> None:
    granted: list[float] = []

    class RecordedCalls(WorkerCalls):
        def __init__(self, calls: Any, seconds: float) -> None:
            granted.append(seconds)
            super().__init__(calls, seconds)

    monkeypatch.setattr(RemoteDialect, "run_calls", RecordedCalls)
    number = 8 if share_a_worker else 3
    requests = [
        request_of([impatient.load(ship(hanging(slot), tenant="all" if share_a_worker else f"t{slot}"))], slot, {})
        for slot in range(number)
    ]
    good = request_of([impatient.load(ship(DenyGiven, tenant="good"))], number, {"ids": [5]})
    outcome = step([*requests, good], SHORT_CALL_SECONDS)
    assert {type(failure.error) for failure in outcome.failures.values()} == {ProcessorFailed}
    assert sorted(outcome.failures) == list(range(number))
    assert denied(outcome) == {number: [5]}
    assert granted[0] == SHORT_CALL_SECONDS
    assert sum(granted) < SHORT_CALL_SECONDS + 0.4


def test_a_processor_that_uses_up_the_deadline_does_not_fail_the_next_place(
    impatient: ProcessExecutor, ship: Ship
) -> None:
    good = impatient.load(ship(DenyGiven, tenant="next place"))
    bad = request_of([impatient.load(ship(hanging(0), tenant="uses it up"))], 0, {})
    chained = request_of([good, impatient.load(ship(DenyGiven, tenant="next place"))], 1, {"ids": [5]})
    outcome = step([bad, chained], SHORT_CALL_SECONDS)
    assert outcome.failures.keys() == {0}
    assert denied(outcome) == {1: [5]}


def test_a_failing_group_is_called_again_only_before_the_deadline(impatient: ProcessExecutor, ship: Ship) -> None:
    """Each of 16 rows sleeps and raises: the rows are not called one by one after the deadline."""
    dialect: Any = impatient.load(ship(SleepsAndRaises, tenant="slow failure"))
    requests = [request_of([dialect], slot, {"seconds": SHORT_CALL_SECONDS * 0.4}) for slot in range(16)]
    calls = []
    post = dialect.post
    dialect.post = lambda call, seconds: (calls.append(call), post(call, seconds))
    outcome = step(requests, SHORT_CALL_SECONDS)
    assert sorted(outcome.failures) == list(range(16))
    assert len(calls) <= 1 + 2 + 4


def test_a_start_that_hangs_in_a_new_worker_fails_its_request_only(impatient: ProcessExecutor, ship: Ship) -> None:
    dialects = [impatient.load(ship(cls, tenant="rebuilt")) for cls in (StartsOnce, DenyGiven)]
    bad, good = request_of(dialects[:1], 0, {}), request_of(dialects[1:], 1, {"ids": [5]})
    good.skip = True  # the time of the step may be used up when its turn comes
    assert denied(step([bad, good])) == {0: [3], 1: [5]}
    dialects[0].worker._close_process()  # type: ignore[attr-defined]
    for request in (bad, good):
        request.synchronize(1, request.history.crc(), [2])
    assert type(step([bad, good], SHORT_CALL_SECONDS).failures[0].error) is ProcessorFailed
    good.synchronize(2, good.history.crc(), [3])
    assert denied(step([good])) == {0: [5]}


class RaisesInSecondInit(EditProcessor):
    """Cannot be created again in a worker that was replaced, until a file-less flag of the process is set."""

    def __init__(self) -> None:
        import logitport_server.worker.call_loop as serving

        seen = vars(serving).setdefault("created", [])
        seen.append(1)
        if len(seen) == 1 and vars(serving).get("fail_first"):
            raise ValueError("not the first time")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([len(request.history)])


class MakesFirstFail(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        import logitport_server.worker.call_loop as serving

        vars(serving)["fail_first"] = True
        vars(serving)["created"] = []


def test_states_are_built_again_after_loading_has_failed_once(workers: ProcessExecutor, ship: Ship) -> None:
    """A row must not be left out silently because its state was expected in the worker."""
    helper = workers.load(ship(MakesFirstFail, tenant="reload"))
    dialect: Any = workers.load(ship(RaisesInSecondInit, tenant="reload"))
    request, other = request_of([dialect], 0, {}), request_of([helper], 1, {})
    request.skip = True
    assert denied(step([request])) == {0: [1]}
    step([other])  # the next creation in this process raises
    dialect._calls.process = None  # as after a failure: the processor is loaded again
    request.synchronize(1, request.history.crc(), [2])
    assert 0 in step([request]).failures
    request.synchronize(2, request.history.crc(), [3])
    assert denied(step([request])) == {0: [3]}


def test_a_processor_that_changes_its_kind_ends_its_worker(workers: ProcessExecutor, ship: Ship) -> None:
    dialect: Any = workers.load(ship(DenyGiven, tenant="kind"))
    dialect._calls._loads._kind = (True, False)
    dialect._calls.process = None
    request = request_of([], 0, {})
    with pytest.raises(WorkerLost, match="reads_logits and takes_drafts"):
        dialect.start(RequestContext("r", request.history, {}, VOCAB), {"ids": [1]})


def test_a_worker_that_is_being_forked_delays_no_other_one(recorded: Recorded) -> None:
    record: list[str] = []
    forking, free = recorded("forking", record), recorded("free", record)
    forked = threading.Event()
    forking.prepare = forked.is_set  # type: ignore[method-assign]
    free.at_pump = forked.set
    calls: list[Any] = [RemoteCall(RecordedDialect(worker), States(), None) for worker in (forking, free)]  # type: ignore[arg-type]
    with WorkerCalls(calls, 60.0) as running:
        running.wait()
    assert record.index("read free") < record.index("post forking")
