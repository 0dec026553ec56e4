"""A process's slots for workers: the front door lends them, and the process divides them among its parties."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from logitport.errors import LimitExceeded
from logitport_server.executors.worker_processes.slots import WorkerSlots, counted, path_of, refusal
from logitport_server.principal_process.worker_messages import (
    CancelClaim,
    ClaimSlot,
    ReleaseSlot,
    RequestSlot,
    SlotGranted,
    SlotRefused,
    SlotTaken,
    TakeIdleSlot,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from logitport_server.executors.worker_processes.slots import HoldsSlot, Path
    from logitport_server.principal_process.link import Answer, Link

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 0.01
# For the slot of an idle worker of another process, if shares do not count.
_IDLE_SECONDS = 1.0
# Added to the front door's time to answer.
_ANSWER_SECONDS = 5.0


class LentSlots(WorkerSlots):
    """Grants workers the right to have a process. Thread-safe.

    A party that finds no free slot gets a further one from the front door, if there is one for its principal.
    Otherwise the slots of this process are divided, as `WorkerSlots` does. A slot goes back to the front door when its
    worker has ended, and when other principals are entitled to it.

    Locks: this object's lock is acquired on the thread of `Link.run`, too. Never hold it during a call of the front
    door, whose answer that thread receives.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(0)
        self._link = link
        # The slots that the front door has claimed, and does not have yet.
        self._claims = 0
        self._is_meeting_claims = False
        # Of requests that the front door has refused.
        self._refusals: dict[HoldsSlot, SlotRefused] = {}
        link.handle(ClaimSlot, self._claim)
        link.handle(CancelClaim, self._cancel_claim)
        link.handle(TakeIdleSlot, self._take_idle)

    def acquire(self, worker: HoldsSlot, seconds: float) -> None:
        try:
            super().acquire(worker, seconds)
        finally:
            self._refusals.pop(worker, None)

    def acquire_free(self, worker: HoldsSlot) -> bool:
        if self.holds(worker):
            return True
        try:
            self._request(worker, path_of(worker.domain), _IDLE_SECONDS, counts_share=False)
        except LimitExceeded as error:
            logger.debug("no slot is requested of the front door: %s", error)
        self._refusals.pop(worker, None)
        return super().acquire_free(worker)

    def end_idle(self) -> None:
        super().end_idle()
        with self._lock:
            self._return_free()

    def close(self) -> None:
        super().close()
        with self._lock:
            self._return_free()

    def _borrow(self, worker: HoldsSlot, path: Path, deadline: float) -> None:
        self._request(worker, path, max(0.0, deadline - time.monotonic()), counts_share=True)

    def _request(self, worker: HoldsSlot, path: Path, seconds: float, *, counts_share: bool) -> None:
        """Request a slot of the front door for a worker that has none. The answer comes within these seconds.

        Raises LimitExceeded if it does not.
        """
        with self._lock:
            if worker in self._held or len(self._held) < self._count:
                return
            has_idle = any(not one.in_use and not one.lock.locked() for one in self._held)
        request = RequestSlot(seconds=seconds, has_idle=has_idle, counts_share=counts_share)
        answering = self._link.begin(request)
        try:
            answer = answering.result(seconds + _ANSWER_SECONDS).message
        except FutureTimeoutError:
            answering.add_done_callback(self._return_late)
            raise LimitExceeded("no worker is free: the server has not answered in time; try again") from None
        with self._lock:
            if isinstance(answer, SlotGranted):
                self._count += 1
                self._held.setdefault(worker, path)  # another worker may have handed over its slot meanwhile
                self._return_free()
            elif isinstance(answer, SlotRefused):
                self._refusals[worker] = answer

    def _return_late(self, answering: Future[Answer]) -> None:
        """Return a slot that was granted when the request was given up."""
        if answering.exception() is None and isinstance(answering.result().message, SlotGranted):
            with self._lock:
                self._count += 1
                self._return_free()

    def _refusal(self, worker: HoldsSlot, path: Path, *, is_due: bool) -> LimitExceeded:
        refused = self._refusals.get(worker)
        if refused is None:
            return super()._refusal(worker, path, is_due=is_due)
        if is_due or refused.is_due:
            return refusal(refused.total, "")
        parts = [counted(0, refused.held, refused.share), *self._counted_below(path)]
        return refusal(refused.total, ", ".join(parts))

    def _give_way(self, worker: HoldsSlot) -> None:
        is_claimed = worker in self._claimed
        super()._give_way(worker)
        if is_claimed and self._claims and worker in self._held:
            self._end(worker)
            self._return_free()

    def _return_free(self) -> None:
        """Return the slots that no worker holds. The lock is held."""
        while self._count > len(self._held):
            self._count -= 1
            self._claims = max(0, self._claims - 1)
            self._link.post(ReleaseSlot())

    def _claim(self, _message: Any, _descriptors: list[int]) -> None:
        with self._lock:
            self._claims += 1
            if self._is_meeting_claims:
                return
            self._is_meeting_claims = True
        try:
            threading.Thread(target=self._meet_claims, name="logitport-claimed-slots", daemon=True).start()
        except RuntimeError as error:
            logger.warning("a claimed slot is not returned before the next claim: %s", error)
            with self._lock:
                self._is_meeting_claims = False

    def _cancel_claim(self, _message: Any, _descriptors: list[int]) -> None:
        with self._lock:
            self._claims = max(0, self._claims - 1)
            if not self._claims and not self._requests:
                self._claimed.clear()

    def _take_idle(self, _message: Any, _descriptors: list[int]) -> SlotTaken:
        with self._lock:
            idle = sorted((one for one in self._held if not one.in_use), key=lambda one: one.idle_since)
            taken = any(map(self._try_to_end, idle))
            self._return_free()
        return SlotTaken(taken=taken)

    def _meet_claims(self) -> None:
        """End workers between their calls until no claim is left."""
        while True:
            with self._lock:
                # A worker that is always in calls ends at its next one.
                order = sorted(self._held, key=lambda one: (one.in_use, one.idle_since))
                if self._claims and any(map(self._try_to_end, order)):
                    self._return_free()
                    continue
                if not self._claims:
                    self._is_meeting_claims = False
                    return
                if len(self._claimed) < len(self._requests) + self._claims:
                    self._claimed.update(order[: self._claims])
            time.sleep(_RETRY_SECONDS)
