"""Which workers may have a process: a number of slots, with a share for each calling party."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from logitport.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.executors.worker_processes.worker_report import WorkerReport
    from logitport_session.trust.principals import TrustDomain

    # The calling principal, its tenant, and the code: each level is divided among the parties of the next one.
    Path = tuple[str, str, tuple[str, str]]

_RETRY_SECONDS = 0.01
# A call that waits for a slot leaves the rest of its time to the calls of the same step that run after it.
_WAITING_PART = 0.5
_LEVELS = ("principal", "tenant", "processor")


class HoldsSlot(Protocol):
    """A worker, as far as slots are concerned. Its lock is held during calls, and while a slot is acquired."""

    lock: threading.Lock
    idle_since: float
    keep_seconds: float

    @property
    def domain(self) -> TrustDomain | None:
        """The trust domain."""

    @property
    def in_use(self) -> bool:
        """Whether sessions hold processors of the worker."""

    def report(self) -> WorkerReport:
        """Return what the worker does."""

    def close(self) -> None:
        """End the process. The worker acquires a slot before it has another."""


class WorkerSlots:
    """Grants workers the right to have a process. Thread-safe.

    Free slots are lent to any party. When all are in use, the slots are divided equally among the principals that have
    or request one, a principal's slots among its tenants, and a tenant's among its processors. A party below its share
    gets the slot of an idle worker, or of the party that is most above its share. A party at its share is refused.

    Locks: a worker's lock is acquired before this object's. While this object's lock is held, the locks of other
    workers are only tried.

    Args:
        count: number of slots.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: dict[HoldsSlot, Path] = {}
        # The oldest request first. A worker requests one slot at a time, because its lock is held.
        self._requests: dict[HoldsSlot, Path] = {}
        # Workers that must give way at their next call: workers that are always in calls could keep their slots.
        self._claimed: set[HoldsSlot] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def workers(self) -> list[HoldsSlot]:
        """Return the workers that hold a slot."""
        with self._lock:
            return list(self._held)

    def holds(self, worker: HoldsSlot) -> bool:
        """Return whether the worker has a slot, and need not give way."""
        return worker in self._held and worker not in self._claimed

    def acquire(self, worker: HoldsSlot, seconds: float) -> None:
        """Acquire a slot for a worker, unless it has one. The caller holds the worker's lock.

        Raises LimitExceeded if the worker's party is at its share, or if all workers above their share are in calls
        for half of these seconds.
        """
        if self.holds(worker):
            return
        path, deadline = path_of(worker.domain), time.monotonic() + seconds * _WAITING_PART
        with self._lock:
            self._give_way(worker)
            self._requests[worker] = path
        try:
            self._borrow(worker, path, deadline)
            while not self._granted(worker, path, is_last=time.monotonic() >= deadline):
                time.sleep(_RETRY_SECONDS)
        finally:
            with self._lock:
                del self._requests[worker]
                if not self._requests:
                    self._claimed.clear()

    def acquire_free(self, worker: HoldsSlot) -> bool:
        """Acquire a slot that is free, or that an idle worker holds, for a worker that its trust domain can do without.

        Shares do not count: the worker is not in use by a session, so any party gets the slot after its calls. The
        caller holds the worker's lock. Returns False if there is no such slot.
        """
        if self.holds(worker):
            return True
        path = path_of(worker.domain)
        with self._lock:
            self._give_way(worker)
            return worker in self._held or self._try(worker, path, self._idle(path))

    def end_idle(self) -> None:
        """End workers that no session has used for as long as they are kept."""
        now = time.monotonic()
        with self._lock:
            for worker in list(self._held):
                if not worker.in_use and now - worker.idle_since > worker.keep_seconds:
                    self._try_to_end(worker)

    def close(self) -> None:
        """End all workers, also those in calls."""
        with self._lock:
            for worker in list(self._held):
                self._end(worker)

    def _granted(self, worker: HoldsSlot, path: Path, *, is_last: bool) -> bool:
        """Try to hold a slot. Raises LimitExceeded if the worker's party is at its share, or at the last attempt."""
        with self._lock:
            if worker in self._held:
                return True
            above = self._above_share(path)
            if self._try(worker, path, [*self._idle(path, above), *above]):
                return True
            if is_last or not above:
                raise self._refusal(worker, path, is_due=bool(above))
            if len(self._claimed) < len(self._requests):
                self._claimed.add(above[0])
            return False

    def _borrow(self, worker: HoldsSlot, path: Path, deadline: float) -> None:
        """Acquire a slot of another process for a worker whose request is recorded. For subclasses."""

    def _refusal(self, worker: HoldsSlot, path: Path, *, is_due: bool) -> LimitExceeded:  # noqa: ARG002 - for subclasses
        """Return the error of a party that gets no slot, although it is below its share if `is_due`."""
        return refusal(self._count, "" if is_due else self._counted(path))

    def _give_way(self, worker: HoldsSlot) -> None:
        """Hand over the slot of a claimed worker, if a request is still entitled to it."""
        if worker not in self._claimed:
            return
        self._claimed.discard(worker)
        for request, path in self._requests.items():
            if worker in self._above_share(path):
                self._end(worker)
                self._held[request] = path
                return

    def _try(self, worker: HoldsSlot, path: Path, others: Sequence[HoldsSlot]) -> bool:
        """Hold a slot that is free, or that one of these other workers can give up at once."""
        if len(self._held) >= self._count and not any(map(self._try_to_end, others)):
            return False
        self._held[worker] = path
        return True

    def _idle(self, path: Path, above: Sequence[HoldsSlot] = ()) -> list[HoldsSlot]:
        """Return workers that no session uses: these first, then the principal's own, then others."""
        idle = sorted((one for one in self._held if not one.in_use), key=lambda one: one.idle_since)
        idle.sort(key=lambda one: (one not in above, self._held[one][:1] != path[:1]))
        return idle

    def _above_share(self, path: Path) -> list[HoldsSlot]:
        """Return the workers that must give way to this party, the first one first; none if it is at its share."""
        for level in range(len(_LEVELS)):
            counts, share = self._counts(path, level)
            if counts[path[: level + 1]] < share:
                above = {prefix: count for prefix, count in counts.items() if count > share}
                workers = [one for one, held in self._held.items() if held[: level + 1] in above]
                return sorted(
                    workers, key=lambda one: (-above[self._held[one][: level + 1]], one.in_use, one.idle_since)
                )
        return []

    def _counts(self, path: Path, level: int) -> tuple[Counter[tuple[object, ...]], int]:
        """Return the slots of each other party at a level of its path, and the share of each."""
        counts: Counter[tuple[object, ...]] = Counter()
        for held in self._held.values():
            if held[:level] == path[:level]:
                counts[held[: level + 1]] += 1
        total = self._count if level == 0 else counts.total()
        for requested in self._requests.values():
            if requested[:level] == path[:level]:
                counts[requested[: level + 1]] += 0  # it has a share, too
        return counts, max(1, total // len(counts))

    def _counted(self, path: Path) -> str:
        """Return the slots and shares of a party, for an error."""
        counts, share = self._counts(path, 0)
        return ", ".join([counted(0, counts[path[:1]], share), *self._counted_below(path)])

    def _counted_below(self, path: Path) -> list[str]:
        """Return the slots and shares of a party within its principal, at the levels that are divided."""
        parts = []
        for level in range(1, len(_LEVELS)):
            counts, share = self._counts(path, level)
            if len(counts) > 1:
                parts.append(counted(level, counts[path[: level + 1]], share))
        return parts

    def _try_to_end(self, worker: HoldsSlot) -> bool:
        """End a worker, unless it is in a call."""
        if not worker.lock.acquire(blocking=False):
            return False
        try:
            self._end(worker)
        finally:
            worker.lock.release()
        return True

    def _end(self, worker: HoldsSlot) -> None:
        self._held.pop(worker, None)
        self._claimed.discard(worker)
        worker.close()


def refusal(total: int, counts: str) -> LimitExceeded:
    """Return the error of a party that gets none of these slots. Without counts, those above their share are busy."""
    reason = counts or "and those above their share are in calls"
    return LimitExceeded(
        f"{total} workers are in use, {reason}; try again when requests have ended, or raise --max-workers"
    )


def counted(level: int, count: int, share: int) -> str:
    """Return the slots and the share of a party at a level of its path, for an error."""
    return f"{count} of them by this {_LEVELS[level]} (its share: {share})"


def path_of(domain: TrustDomain | None) -> Path:
    """Return the party of a trust domain."""
    if domain is None:
        return "", "", ("", "")
    return domain.party.principal, domain.party.tenant, (domain.owner, domain.digest)
