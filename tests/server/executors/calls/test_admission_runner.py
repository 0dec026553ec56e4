"""Which worker runs the code of an admission while requests run."""

from __future__ import annotations

import math
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from logitport import EditProcessor, History, InvalidArgument, ProcessorFailed
from logitport_server.executors.calls import admission_runner
from logitport_server.executors.calls.domain_workers import DomainWorkers
from logitport_session.dialects import RequestContext
from logitport_session.dialects.base import States, by_row
from logitport_session.dialects.failures import WorkerLost
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport import EditRequest, RowEdits
    from logitport_runner.process_executor import ProcessExecutor
    from logitport_session.processor_sources.source import Source

    Ship = Callable[..., Source]

VOCAB = 64
FOREVER = 3600


class DenyGiven(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.params["ids"])


class Checks(EditProcessor):
    """Hangs in its check or in its start if a parameter names it."""

    @classmethod
    def validate_params(cls, params: Any) -> None:
        if "bad" in params:
            raise InvalidArgument("bad")
        if "check" in params:
            time.sleep(FOREVER)

    def start(self, request: EditRequest) -> None:
        if "start" in request.params:
            time.sleep(FOREVER)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([7])


class CountsInstances(EditProcessor):
    """Denies the number of instances that its process has created."""

    instances: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.instances.append(1)
        self.number = len(self.instances)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([self.number])


def context() -> RequestContext:
    return RequestContext("r", History([1]), {}, VOCAB)


def admitted(executor: ProcessExecutor, source: Source, **params: Any) -> tuple[Any, States]:
    """Admit a request of a session of its own."""
    dialect: Any = executor.load(source)
    dialect.validate(params, {})
    return dialect, States([dialect.start(context(), params)])


def denied(dialect: Any, states: States) -> list[int]:
    return [int(token) for _, ids, _ in by_row(dialect.edit(states), 1)[0] for token in ids]


@contextmanager
def in_thread(call: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Run a call in a thread, and wait for its end. Yields a list that gets its error."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the test checks it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield errors
    thread.join()


def admission_worker(dialect: Any) -> Any:
    """Return the worker for admissions of the trust domain; None if there is none."""
    return dialect.worker.group._admissions()


def is_in_admission(dialect: Any) -> bool:
    worker = admission_worker(dialect)
    return worker is not None and worker.lock.locked() and worker.pending


def test_a_check_that_hangs_holds_up_no_call(workers: ProcessExecutor, ship: Ship) -> None:
    running, states = admitted(workers, ship(Checks, tenant="check"))
    checked: Any = workers.load(ship(Checks, tenant="check"))
    failures = workers.quarantine.failures
    with in_thread(lambda: checked.validate({"check": 1}, {})) as errors:
        wait_until(lambda: is_in_admission(running))
        assert denied(running, states) == [7]
        assert checked.start(context(), {}).loaded  # a start does not wait for the check either
        admission_worker(running)._process.kill()
    assert type(errors[0]) is WorkerLost
    assert workers.quarantine.failures == failures + 1
    assert denied(running, states) == [7]


def test_a_check_does_not_change_how_running_requests_are_called(workers: ProcessExecutor, ship: Ship) -> None:
    """An instance may know only after a start that it is argmax-invariant. A session makes steps during a check."""
    running, _ = admitted(workers, ship(Checks, tenant="kind"))
    running.argmax_invariant = True  # as the reply to a start reports it
    running.validate({"other": 1}, {})
    assert admission_worker(running)._process.alive
    assert running.argmax_invariant


def test_a_class_that_loads_quickly_runs_beside_the_others(
    workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_runner, "_QUICK_PART", math.inf)
    running, _ = admitted(workers, ship(DenyGiven, tenant="quick"), ids=[3])
    assert admission_worker(running) is None
    other, states = admitted(workers, ship(Checks, tenant="quick"))
    assert other.worker is running.worker
    assert admission_worker(running)._process.alive
    assert denied(other, states) == [7]
    with pytest.raises(InvalidArgument):
        other.validate({"bad": 1}, {})


def test_a_known_class_without_a_check_needs_no_second_process(
    workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_runner, "_QUICK_PART", math.inf)
    admissions = [admitted(workers, ship(DenyGiven, tenant="known"), ids=[number]) for number in range(3)]
    assert admission_worker(admissions[0][0]) is None
    assert [denied(*one) for one in admissions] == [[0], [1], [2]]


def test_a_class_that_loads_slowly_keeps_a_worker_of_its_own(
    workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_runner, "_QUICK_PART", -1.0)
    running, _ = admitted(workers, ship(DenyGiven, tenant="slow"), ids=[3])
    source = ship(CountsInstances, tenant="slow")
    slow, states = admitted(workers, source)
    assert slow.worker is not running.worker
    assert admission_worker(running) is None
    assert slow.worker.in_use
    assert slow.worker.has_requests()
    assert denied(slow, states) == [1]  # what was loaded and started at its admission is used
    other, others = admitted(workers, ship(Checks, tenant="slow"))
    assert len({running.worker, slow.worker, other.worker}) == 3
    assert denied(other, others) == [7]
    # Its worker is used again if only unpickling was slow.
    slow.worker._process.quick.add(source.key)
    again, states = admitted(workers, source)
    assert again.worker is slow.worker
    assert denied(again, states) == [2]


@pytest.mark.slow
def test_without_a_free_slot_admissions_use_the_worker_of_the_calls(
    make_executor: Callable[..., ProcessExecutor], ship: Ship
) -> None:
    executor = make_executor(max_workers=1)
    running, states = admitted(executor, ship(DenyGiven), ids=[3])
    other, others = admitted(executor, ship(Checks))
    assert other.worker is running.worker
    assert executor.running == 1
    assert [denied(running, states), denied(other, others)] == [[3], [7]]


@pytest.mark.slow
def test_a_process_for_admissions_ends_when_it_is_idle_or_its_slot_is_needed(
    make_executor: Callable[..., ProcessExecutor], ship: Ship
) -> None:
    executor = make_executor(max_workers=2)
    running, states = admitted(executor, ship(DenyGiven), ids=[3])
    other: Any = executor.load(ship(Checks))
    assert executor.running == 2
    stranger, strangers = admitted(executor, ship(DenyGiven, tenant="stranger"), ids=[4])
    assert admission_worker(running)._process is None
    assert [denied(running, states), denied(stranger, strangers)] == [[3], [4]]
    stranger.worker.close()
    executor._slots._held.pop(stranger.worker)
    other.validate({}, {})
    assert executor.running == 2
    admission_worker(running).idle_since -= admission_worker(running).keep_seconds
    running.worker.idle_since -= 3600.0
    executor._slots.end_idle()
    assert executor.running == 1
    assert denied(running, states) == [3]


@pytest.mark.slow
def test_a_start_beside_other_requests_has_the_time_of_a_call(
    make_executor: Callable[..., ProcessExecutor], ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_runner, "_QUICK_PART", math.inf)
    executor = make_executor(1.0)
    running, _ = admitted(executor, ship(Checks))
    with pytest.raises(ProcessorFailed, match=r"start .*--processor-timeout-seconds"):
        running.start(context(), {"start": 1})


def test_requests_of_the_same_chain_leave_a_start_the_time_of_a_load(workers: ProcessExecutor, ship: Ship) -> None:
    dialect: Any = workers.load(ship(DenyGiven, tenant="chain"))
    own = context()
    state = dialect.start(own, {"ids": [1]})
    assert dialect.worker.admission_time(besides=own) == (200.0, True)
    assert dialect.worker.admission_time(besides=context()) == (60.0, False)
    del state
    assert dialect.worker.admission_time() == (200.0, True)


@pytest.mark.parametrize("quick_part", [-1.0, math.inf])
def test_a_trial_has_one_result_for_all_threads(
    workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch, quick_part: float
) -> None:
    monkeypatch.setattr(admission_runner, "_QUICK_PART", quick_part)
    tenant = f"threads {quick_part}"
    running, _ = admitted(workers, ship(DenyGiven, tenant=tenant), ids=[3])
    dialect: Any = workers.load(ship(Checks, tenant=tenant))
    assert dialect._admission.on_trial
    started: list[States] = []

    def start() -> None:
        started.append(States([dialect.start(context(), {})]))
        assert denied(dialect, started[-1]) == [7]

    with ExitStack() as threads:
        errors = [threads.enter_context(in_thread(start)) for _ in range(8)]
    assert errors == [[]] * 8
    assert (dialect.worker is running.worker) == (quick_part > 0)
    assert [denied(dialect, states) for states in started] == [[7]] * 8


def kept_in(worker: Any) -> bool:
    return bool(worker._process.kept)


class SlowCountsInstances(CountsInstances):
    """Takes longer to create than instances that are not kept."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(0.3)


@pytest.mark.parametrize("beside_others", [False, True])
def test_an_instance_that_was_slow_to_create_serves_the_next_session(
    workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch, beside_others: bool
) -> None:
    """An engine's front end tries a chain in one session, and the engine uses another."""
    monkeypatch.setattr(admission_runner, "_QUICK_PART", -1.0)
    tenant = f"kept {beside_others}"
    running = admitted(workers, ship(DenyGiven, tenant=tenant), ids=[3]) if beside_others else None
    source = ship(SlowCountsInstances, tenant=tenant)
    tried, states = admitted(workers, source)
    worker = tried.worker
    assert denied(tried, states) == [1]
    at_the_same_time, others = admitted(workers, source)
    assert denied(at_the_same_time, others) == [2 if at_the_same_time.worker is worker else 1]
    del states, tried
    assert kept_in(worker)
    again, states = admitted(workers, source)
    assert again.worker is worker
    assert denied(again, states) == [1]
    assert not kept_in(worker)
    del running


def test_an_instance_that_was_quick_to_create_serves_one_session(workers: ProcessExecutor, ship: Ship) -> None:
    source = ship(CountsInstances, tenant="not kept")
    tried, states = admitted(workers, source)
    worker = tried.worker
    del states, tried
    assert not kept_in(worker)
    assert denied(*admitted(workers, source)) == [2]


def test_a_class_that_checks_slowly_does_so_beside_its_worker_from_then_on(
    workers: ProcessExecutor, ship: Ship, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front end tries one chain while its engine waits for the start of another."""
    monkeypatch.setattr(admission_runner, "_QUICK_PART", -1.0)
    tried: Any = workers.load(ship(Checks, tenant="slow check"))
    tried.validate({"slow": 1}, {})
    assert admission_worker(tried) is None  # the first one is not known to be slow
    with in_thread(lambda: tried.validate({"check": 1}, {})):
        wait_until(lambda: is_in_admission(tried))
        assert tried.start(context(), {"slow": 1}).loaded
        admission_worker(tried)._process.kill()


class Worker:
    """The part of a worker that `DomainWorkers` uses. Its slots cannot be acquired."""

    keep_seconds = 0.0
    idle_since = 0.0

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.domain_workers: object = None

    def has_requests(self) -> bool:
        return True

    def reserve(self, source: object, seconds: float) -> None:
        assert self.lock.acquire(timeout=seconds)

    def acquire_free_slot(self) -> bool:
        raise OSError(24, "Too many open files")


def test_an_error_while_a_slot_is_acquired_releases_the_worker() -> None:
    created: list[Worker] = []

    def create() -> Any:
        created.append(Worker())
        return created[-1]

    workers = DomainWorkers(create)
    with pytest.raises(OSError, match="Too many open files"):
        workers.reserve_for_admission(cast("Any", Worker()), cast("Any", None), 1.0)
    assert [worker.lock.locked() for worker in created] == [False]
