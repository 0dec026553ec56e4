"""Edits that do not fit into a reply: an honest worker says so, and calls with fewer rows are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest

from logitport import EditProcessor, History, LimitExceeded
from logitport_server.executors.calls.domain_workers import DomainWorkers
from logitport_server.executors.calls.remote_dialect import RemoteDialect
from logitport_server.executors.calls.worker import Deadlines, Worker
from logitport_server.registry.quarantine import Quarantine
from logitport_server.worker import messages, packing
from logitport_session.dialects import RequestContext
from logitport_session.dialects.failures import WorkerLost
from logitport_session.requests.active_request import ActiveRequest, ChainEntry
from logitport_session.steps.grouping import Row, Rows
from logitport_session.steps.outcome import StepOutcome
from logitport_session.steps.step import run
from logitport_session.steps.step_time import StepTime
from tests.server.executors.thread_workers import fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logitport import EditRequest, RowEdits
    from logitport_session.processor_sources.source import Source

    Ship = Callable[..., Source]

VOCAB = 1 << 10
LIMIT_BYTES = 3000  # less than the bias of one row over all ids
DEADLINES = Deadlines(60.0, 200.0)


class Biases(EditProcessor):
    """Biases as many ids as the parameter says, each so often."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        ids = np.arange(request.params["ids"])
        for _ in range(request.params.get("times", 1)):
            edits.bias(ids, np.ones(len(ids)))


@pytest.fixture
def worker(ship: Ship, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(packing, "MAX_WORKER_EDITS_BYTES", LIMIT_BYTES)
    monkeypatch.setattr("logitport_server.executors.calls.worker.MAX_WORKER_EDITS_BYTES", LIMIT_BYTES)
    domain = ship(Biases).domain
    worker = Worker(domain, lambda _: Mock(fork=fork), DEADLINES, Quarantine(1, DEADLINES.call))
    yield worker
    worker.close()


def step(dialect: Any, chosen: Sequence[dict[str, int]], vocab_size: int = VOCAB) -> StepOutcome:
    """Run a step with a request for each of these parameters."""
    rows = []
    for slot, params in enumerate(chosen):
        context = RequestContext(f"r{slot}", History([1]), {}, vocab_size)
        chain = [ChainEntry(dialect, dialect.start(context, params))]
        rows.append(Row(slot, ActiveRequest(slot, 0, context.history, chain, skip=False)))
    outcome = StepOutcome()
    run(Rows(rows), {}, vocab_size, None, outcome, StepTime(60.0))
    return outcome


def test_a_call_is_split_until_its_replies_fit(worker: Worker, ship: Ship) -> None:
    dialect = RemoteDialect(ship(Biases), DomainWorkers(lambda: worker))
    process = worker.process(60.0)
    outcome = step(dialect, [{"ids": 100}] * 8)
    assert not outcome.failures
    assert sorted(outcome.edits) == list(range(8))
    assert all(len(ids) == 100 for edits in outcome.edits.values() for _, ids, _ in edits)
    assert worker.process(60.0) is process
    assert not worker.quarantine.failures


def test_a_row_that_does_not_fit_fails_alone(worker: Worker, ship: Ship) -> None:
    dialect = RemoteDialect(ship(Biases), DomainWorkers(lambda: worker))
    process = worker.process(60.0)
    outcome = step(dialect, [{"ids": 100}, {"ids": VOCAB}, {"ids": 100}])
    assert outcome.failures.keys() == {1}
    error = outcome.failures[1].error
    assert type(error) is LimitExceeded
    assert f"take {8 * VOCAB + 13} bytes, the limit is {LIMIT_BYTES} bytes" in error.message
    assert "processor Biases" in error.message
    assert sorted(outcome.edits) == [0, 2]
    assert worker.process(60.0) is process
    assert not worker.quarantine.failures


@pytest.mark.parametrize(
    ("size_bytes", "expected", "reason"),
    [
        (LIMIT_BYTES, messages.EditReply, f"edits of {LIMIT_BYTES} bytes, which fit"),
        (LIMIT_BYTES + 1, messages.ProcessReply, "TooLarge instead of ProcessReply"),
    ],
)
def test_a_worker_that_lies_about_the_size_is_ended(
    worker: Worker, ship: Ship, size_bytes: int, expected: Any, reason: str
) -> None:
    pump = Mock(return_value=[(messages.TooLarge(size_bytes), [])])
    worker._process = Mock(pump=pump, waited_seconds=0.0)
    errors: list[BaseException] = []
    worker.post(ship(Biases), messages.Edit(processor=1, vocab_size=VOCAB), [], expected, Mock(), errors.append)
    worker.pump()
    with pytest.raises(WorkerLost, match=reason):
        raise errors[0]
    assert worker.quarantine.failures == 1
