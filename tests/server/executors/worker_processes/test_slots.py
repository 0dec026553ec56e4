"""The shares of calling parties in the worker processes."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from logitport import LimitExceeded
from logitport_server.executors.worker_processes.slots import WorkerSlots
from logitport_session.trust.principals import Party, TrustDomain

SECONDS = 60.0


class FakeWorker:
    """A worker without a process."""

    def __init__(self, principal: str, tenant: str = "", digest: str = "d", used: float = 0.0) -> None:
        self.domain = TrustDomain(principal, Party(principal, tenant), digest)
        self.lock = threading.Lock()
        self.idle_since = used
        self.keep_seconds = 60.0
        self.in_use: bool = True
        self.ends = 0

    def close(self) -> None:
        self.ends += 1


def held(slots: WorkerSlots) -> list[str]:
    """Return the principal and tenant of each held slot."""
    return sorted("/".join(worker.domain.party) for worker in slots.workers() if worker.domain is not None)


def filled(count: int, *workers: FakeWorker) -> WorkerSlots:
    slots = WorkerSlots(count)
    for worker in workers:
        slots.acquire(worker, 0.0)
    return slots


def test_free_slots_are_lent_and_given_back_to_their_owner() -> None:
    greedy = [FakeWorker("greedy", str(number), used=float(number)) for number in range(4)]
    slots = filled(4, *greedy)
    slots.acquire(FakeWorker("late"), 0.0)
    slots.acquire(FakeWorker("late", "2"), 0.0)
    assert held(slots) == ["greedy/2", "greedy/3", "late/", "late/2"]  # the least recently used ones have ended
    assert [worker.ends for worker in greedy] == [1, 1, 0, 0]
    with pytest.raises(LimitExceeded, match=r"4 .* 2 .* principal \(its share: 2\)"):
        slots.acquire(FakeWorker("late", "3"), 0.0)
    with pytest.raises(LimitExceeded, match=r"0 .* tenant"):
        slots.acquire(greedy[0], 0.0)


def test_the_principal_most_above_its_share_gives_way() -> None:
    slots = filled(6, *(FakeWorker("a", str(i)) for i in range(4)), *(FakeWorker("b", str(i)) for i in range(2)))
    for principal in ("c", "d"):
        slots.acquire(FakeWorker(principal), 0.0)
    assert held(slots) == ["a/2", "a/3", "b/0", "b/1", "c/", "d/"]


def test_more_principals_than_slots() -> None:
    slots = filled(2, FakeWorker("a"), FakeWorker("b"))
    with pytest.raises(LimitExceeded, match=r"2 .* 0 .* principal \(its share: 1\)"):
        slots.acquire(FakeWorker("c"), 0.0)


def test_idle_workers_are_ended_even_for_a_principal_at_its_share() -> None:
    own, others = FakeWorker("a", used=2.0), FakeWorker("b", used=1.0)
    slots = filled(2, own, others)
    own.in_use = others.in_use = False
    slots.acquire(FakeWorker("a", "2"), 0.0)
    assert held(slots) == ["a/2", "b/"]


def test_tenants_and_then_processors_share_what_their_principal_has() -> None:
    slots = filled(4, *(FakeWorker("", "greedy", str(number)) for number in range(4)))
    slots.acquire(FakeWorker("", "late", "0"), 0.0)
    slots.acquire(FakeWorker("", "late", "1"), 0.0)
    assert held(slots) == ["/greedy", "/greedy", "/late", "/late"]
    with pytest.raises(LimitExceeded, match=r"0 of them by this processor \(its share: 1\)"):
        slots.acquire(FakeWorker("", "late", "2"), 0.0)


def test_a_free_slot_is_a_free_one_or_that_of_an_idle_worker() -> None:
    used, idle, further = FakeWorker("a", used=1.0), FakeWorker("b", used=2.0), FakeWorker("b", "2")
    slots = filled(2, used)
    assert slots.acquire_free(idle)
    assert slots.acquire_free(idle)  # it has one
    assert not slots.acquire_free(further)  # a share gives no right to it
    idle.in_use = False
    with idle.lock:
        assert not slots.acquire_free(further)
    assert slots.acquire_free(further)
    assert (held(slots), used.ends, idle.ends) == (["a/", "b/2"], 0, 1)


def test_a_worker_that_no_session_uses_gives_way_first() -> None:
    used, unused = FakeWorker("a", used=1.0), FakeWorker("a", used=2.0)
    slots = filled(2, used, unused)
    unused.in_use = False
    with unused.lock, used.lock, pytest.raises(LimitExceeded):
        slots.acquire(FakeWorker("b"), 0.0)
    slots.acquire(FakeWorker("b"), 0.0)
    assert (held(slots), used.ends, unused.ends) == (["a/", "b/"], 0, 1)


def test_an_idle_worker_is_kept_as_long_as_it_says() -> None:
    now = time.monotonic()
    kept, ended = (FakeWorker("a", used=now - 30.0) for _ in range(2))
    kept.in_use = ended.in_use = False
    ended.keep_seconds = 10.0
    slots = filled(2, kept, ended)
    slots.end_idle()
    assert slots.workers() == [kept]


def test_a_worker_in_a_call_is_not_ended() -> None:
    busy, free = FakeWorker("a", used=1.0), FakeWorker("a", "2", used=2.0)
    slots = filled(2, busy, free)
    with busy.lock:
        slots.acquire(FakeWorker("b"), 0.0)
    assert (busy.ends, free.ends) == (0, 1)


def test_a_share_is_due_when_the_calls_end() -> None:
    """Between two calls, its lock is never free when another worker tries it."""
    busy = [FakeWorker("a", str(number)) for number in range(2)]
    slots = filled(2, *busy)
    for worker in busy:
        worker.lock.acquire()
    with pytest.raises(LimitExceeded, match="those above their share are in calls"):
        slots.acquire(FakeWorker("b"), 0.05)
    slots.acquire(busy[0], 0.0)  # nothing waits for its slot any more
    assert busy[0].ends == 0
    with ThreadPoolExecutor(1) as threads:
        late = FakeWorker("b")
        acquired = threads.submit(slots.acquire, late, SECONDS)
        while not slots._claimed:
            pass
        with pytest.raises(LimitExceeded):
            slots.acquire(busy[0], 0.0)  # its next call
        acquired.result(SECONDS)
    assert held(slots) == ["a/1", "b/"]
    assert (busy[0].ends, late.ends) == (1, 0)
