"""The slots for workers, which the front door divides among principals."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import pytest

from logitport import EditProcessor, LimitExceeded
from tests.server.lent_workers import CountsTokens, Held, started
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import EditRequest, RowEdits
    from tests.server.lent_workers import Lender

    LenderOf = Callable[..., Lender]


class Sleeps(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        import time

        time.sleep(0.5)
        edits.bias([0], [1.0])


def slots_of(lender: Lender) -> dict[str, int]:
    """Return the slots that the front door has lent, by principal."""
    return dict(lender.events.call(lender.service._slots._counts))


def test_a_principal_below_its_share_gets_the_slot_of_another(lender_of: LenderOf) -> None:
    lender = lender_of(max_workers=3)
    _, alice = lender.principal("alice")
    _, bob = lender.principal("bob")
    greedy = [Held(alice, "alice", CountsTokens, str(number)) for number in range(3)]
    assert slots_of(lender) == {"alice": 3}
    late = Held(bob, "bob", CountsTokens)
    assert late.step() == 2.0
    assert slots_of(lender) == {"alice": 2, "bob": 1}
    with pytest.raises(LimitExceeded, match=r"3 workers are in use, 1 of them by this principal \(its share: 1\)"):
        Held(bob, "bob", CountsTokens, "2")
    with pytest.raises(LimitExceeded, match=r"2 of them by this principal \(its share: 1\), 0 of them by this tenant"):
        greedy[0].step()
    assert [held.step() for held in greedy[1:]] == [2.0, 2.0]
    assert lender.service.quarantine.failures == 0


def test_an_idle_worker_of_another_principal_ends(lender_of: LenderOf) -> None:
    lender = lender_of(max_workers=2)
    _, alice = lender.principal("alice")
    _, bob = lender.principal("bob")
    kept, idle = Held(bob, "bob", CountsTokens), Held(alice, "alice", CountsTokens)
    del idle
    gc.collect()
    assert Held(bob, "bob", CountsTokens, "2").step() == 2.0  # although it is at its share
    assert slots_of(lender) == {"bob": 2}
    assert (alice.running, bob.running, kept.step()) == (0, 2, 2.0)


def test_the_own_idle_worker_ends_first(lender_of: LenderOf) -> None:
    lender = lender_of(max_workers=2)
    _, alice = lender.principal("alice")
    _, bob = lender.principal("bob")
    for executor, name in ((alice, "alice"), (bob, "bob")):
        Held(executor, name, CountsTokens)
    gc.collect()
    assert Held(bob, "bob", CountsTokens, "2").step() == 2.0
    assert slots_of(lender) == {"alice": 1, "bob": 1}


def test_a_busy_worker_gives_way_after_its_call(lender_of: LenderOf) -> None:
    lender = lender_of(max_workers=2)
    _, alice = lender.principal("alice")
    _, bob = lender.principal("bob")
    busy = [Held(alice, "alice", Sleeps, str(number)) for number in range(2)]
    stepping = [started(held.step) for held in busy]
    wait_until(lambda: all(held.dialect.worker.called_processor() for held in busy))
    assert Held(bob, "bob", CountsTokens).step() == 2.0
    assert [step.result(60) for step in stepping] == [1.0, 1.0]
    assert slots_of(lender) == {"alice": 1, "bob": 1}
    assert not lender.service._slots._claims


def test_a_worker_that_stays_in_calls_is_waited_for(lender_of: LenderOf) -> None:
    lender = lender_of(max_workers=2)
    _, alice = lender.principal("alice")
    _, bob = lender.principal("bob")
    busy = [Held(alice, "alice", CountsTokens, str(number)) for number in range(2)]
    for held in busy:
        held.dialect.worker.lock.acquire()
    slots = bob._slots
    worker = bob._new_worker(busy[0].source.domain, next(iter(bob.pythons)))
    with worker.lock, pytest.raises(LimitExceeded, match="those above their share are in calls"):
        slots.acquire(worker, 0.2)
    for held in busy:
        held.dialect.worker.lock.release()
    assert [held.step() for held in busy] == [2.0, 2.0]  # its claim was cancelled
    assert slots_of(lender) == {"alice": 2}


def test_slots_return_when_workers_end(lender_of: LenderOf) -> None:
    lender = lender_of(max_workers=2)
    _, alice = lender.principal("alice")
    held = Held(alice, "alice", CountsTokens)
    worker = held.dialect.worker
    alice._slots.end_idle()
    assert slots_of(lender) == {"alice": 1}
    del held
    gc.collect()
    worker.idle_since = time.monotonic() - 100.0
    alice._slots.end_idle()
    wait_until(lambda: not (slots_of(lender) or lender.service.running))
