"""Divides the slots for workers among the principals."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport_server.principal_process.worker_messages import (
    CancelClaim,
    ClaimSlot,
    ReleaseSlot,
    RequestSlot,
    SlotGranted,
    SlotRefused,
    TakeIdleSlot,
)
from logitport_session.resources.log_limit import LogLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logitport_server.front_door.running_process import RunningProcess

logger = logging.getLogger(__name__)

# For all answers about idle workers. A process answers at once, unless it hangs.
_IDLE_SECONDS = 1.0
# After so long without an answer, further processes get the request.
_HEAD_START_SECONDS = 0.05
_MAX_SECONDS = 3600.0


@dataclass(eq=False)
class _Waiting:
    """A request that waits for a slot of a principal above its share.

    Attributes:
        process: the process that requests it.
        claimed: the process that is to give one up.
        granted: done when the process has the slot.
    """

    process: RunningProcess
    claimed: RunningProcess
    granted: asyncio.Future[None]


class PrincipalSlots:
    """Lends slots to the processes of principals. All methods belong to the event loop.

    Free slots are lent to any principal. When all are in use, the slots are divided equally among the principals that
    hold or request one. A principal below its share gets the slot of an idle worker, or one of the principal that is
    most above its share. A principal at its share gets the slot of an idle worker, or is refused. A process divides its
    slots among its tenants and processors.

    Args:
        count: number of slots.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: dict[RunningProcess, int] = {}
        # Claims that a process has not met yet.
        self._claims: Counter[RunningProcess] = Counter()
        # Requests without an answer, by principal: it has a share, too.
        self._requesting: Counter[str] = Counter()
        # The oldest first.
        self._waiting: list[_Waiting] = []
        self._log_limit = LogLimit()

    def add(self, process: RunningProcess) -> None:
        """Lend slots to a process from now on."""
        self._held[process] = 0

    def remove(self, process: RunningProcess) -> None:
        """Take all slots of a process that has ended."""
        self._held.pop(process, None)
        self._claims.pop(process, None)
        self._waiting = [one for one in self._waiting if one.process is not process]
        self._cancel_claims()
        self._grant_waiting()

    def held(self, process: RunningProcess) -> int:
        """Return the number of slots that a process has."""
        return self._held.get(process, 0)

    async def request(
        self, process: RunningProcess, request: RequestSlot, _descriptors: list[int]
    ) -> SlotGranted | SlotRefused:
        """Handle a request: grant a slot, or refuse it, within the request's seconds."""
        principal, loop = process.principal, asyncio.get_running_loop()
        seconds = request.seconds if 0.0 <= request.seconds <= _MAX_SECONDS else 0.0
        deadline = loop.time() + seconds
        with self._recorded(principal):
            if self._take(process):
                return SlotGranted()
            above = self._above(principal) if request.counts_share and self._is_below(principal) else []
            others = [other for other in self._held if other not in above and other is not process]
            others.sort(key=lambda other: other.principal != principal)
            asked = above if request.has_idle else [*above, *others]
            if await self._take_idle(process, asked, min(seconds, _IDLE_SECONDS)):
                return SlotGranted()
            if request.has_idle:
                return self._refused(principal)
            claimed = self._next_to_claim() if request.counts_share and self._is_below(principal) else None
            if claimed is None or process not in self._held:
                return self._refused(principal)
            return await self._wait(process, claimed, max(0.0, deadline - loop.time()))

    def release(self, process: RunningProcess, _release: ReleaseSlot, _descriptors: list[int]) -> None:
        """Handle the return of a slot."""
        if not self._held.get(process):
            text = "the process %d of %r has returned a slot that it does not have"
            self._log_limit.warn(logger, process.principal, text, process.process_id, process.principal)
            return
        self._held[process] -= 1
        self._claims[process] = max(0, self._claims[process] - 1)
        self._grant_waiting()

    @contextmanager
    def _recorded(self, principal: str) -> Iterator[None]:
        self._requesting[principal] += 1
        try:
            yield
        finally:
            self._requesting[principal] -= 1
            if not self._requesting[principal]:
                del self._requesting[principal]

    def _take(self, process: RunningProcess) -> bool:
        """Lend a free slot to a process, if there is one."""
        if process not in self._held or sum(self._held.values()) >= self._count:
            return False
        self._held[process] += 1
        return True

    async def _take_idle(self, process: RunningProcess, others: Iterable[RunningProcess], seconds: float) -> bool:
        """Lend a process the slot of an idle worker of one of these others, the first ones first.

        All of them at the same time would each end an idle worker, although one is enough. So they get the
        request one after the other, and twice as many each time that none has answered: processes that hang delay this
        only shortly.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        # Evaluated lazily: a process without slots is not disturbed.
        left = (other for other in others if self._held.get(other))
        asking: set[asyncio.Future[None]] = set()
        count = 1
        try:
            while not self._take(process):
                asking.update(asyncio.ensure_future(self._ask(other, deadline)) for other in islice(left, count))
                if not asking:
                    return False
                done, asking = await asyncio.wait(
                    asking, timeout=_HEAD_START_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                count = 1 if done else 2 * count
            return True
        finally:
            for one in asking:
                one.cancel()

    async def _ask(self, other: RunningProcess, deadline: float) -> None:
        """Let a process end an idle worker. It returns the slot, if it had one, before its answer."""
        seconds = deadline - asyncio.get_running_loop().time()
        if seconds > 0.0:
            try:
                await other.call(TakeIdleSlot(), seconds)
            except LogitportError:
                logger.debug("the process %d has not answered about idle workers", other.process_id, exc_info=True)

    async def _wait(
        self, process: RunningProcess, claimed: RunningProcess, seconds: float
    ) -> SlotGranted | SlotRefused:
        """Wait until the claimed process has given up a slot, for these seconds."""
        waiting = _Waiting(process, claimed, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._claims[claimed] += 1
        claimed.post(ClaimSlot())
        try:
            await asyncio.wait([waiting.granted], timeout=seconds)
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            self._cancel_claims()
        return SlotGranted() if waiting.granted.done() else self._refused(process.principal, is_due=True)

    def _grant_waiting(self) -> None:
        while self._waiting and self._take(self._waiting[0].process):
            self._waiting.pop(0).granted.set_result(None)
        self._cancel_claims()

    def _cancel_claims(self) -> None:
        """Cancel claims that no request waits for any more."""
        needed = Counter(one.claimed for one in self._waiting)
        for process, claims in list(self._claims.items()):
            for _ in range(claims - needed[process]):
                process.post(CancelClaim())
            self._claims[process] = min(claims, needed[process])
            if not self._claims[process]:
                del self._claims[process]

    def _counts(self) -> Counter[str]:
        """Return the slots of each principal that holds one."""
        counts: Counter[str] = Counter()
        for process, held in self._held.items():
            if held:
                counts[process.principal] += held
        return counts

    def _share(self) -> int:
        return max(1, self._count // max(1, len({*self._counts(), *self._requesting})))

    def _is_below(self, principal: str) -> bool:
        """Whether a principal is below its share, if its requests that wait are granted."""
        waiting = sum(one.process.principal == principal for one in self._waiting)
        return self._counts()[principal] + waiting < self._share()

    def _above(self, principal: str) -> list[RunningProcess]:
        """Return the processes of other principals above their share, the first to give way first."""
        counts, share = self._counts(), self._share()
        above = [one for one in self._held if one.principal != principal and counts[one.principal] > share]
        return sorted(above, key=lambda one: (-counts[one.principal], -self._held[one]))

    def _next_to_claim(self) -> RunningProcess | None:
        """Return the process that is to give up a slot; None if no principal is above its share.

        Slots that are claimed already do not count.
        """
        left = {process: held - self._claims[process] for process, held in self._held.items()}
        counts: Counter[str] = Counter()
        for process, slots in left.items():
            counts[process.principal] += slots
        share = self._share()
        above = [process for process in left if counts[process.principal] > share and left[process] > 0]
        return max(above, key=lambda process: (counts[process.principal], left[process]), default=None)

    def _refused(self, principal: str, *, is_due: bool = False) -> SlotRefused:
        return SlotRefused(total=self._count, held=self._counts()[principal], share=self._share(), is_due=is_due)
