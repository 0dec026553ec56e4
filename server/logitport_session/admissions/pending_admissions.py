"""Requests that are admitted in the background, while their session goes on with its steps."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from logitport.errors import LimitExceeded, LogitportError
from logitport_session.resources import defects

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from logitport_session.admissions.admission import Admission
    from logitport_session.admissions.admission_trace import AdmissionTrace

    # Runs work on a thread when the principal's share of them allows it. Raises RuntimeError at shutdown.
    Submit = Callable[[str, Callable[[], None]], Future[None]]


@dataclass(eq=False)
class PendingAdmission:
    """An admission that runs, waits, or has ended and is not reported yet.

    Attributes:
        admission: the request.
        load: the part of the admission that takes long. Raises LogitportError.
        arrived_at: on the monotonic clock, in seconds.
        trace: its span.
        context: the context variables of `load`.
        error: why the request is refused; None if it is not, or not yet.
        future: the work, once it was submitted.
        ended: whether `load` has returned or raised.
        cancelled: whether the result is to be discarded.
        queue_seconds: how long it has waited before it began; negative before that.
    """

    admission: Admission
    load: Callable[[], None]
    arrived_at: float
    trace: AdmissionTrace
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    error: LogitportError | None = None
    future: Future[None] | None = None
    ended: bool = False
    cancelled: bool = False
    queue_seconds: float = -1.0

    def begin(self) -> None:
        """End its wait."""
        self.queue_seconds = time.monotonic() - self.arrived_at


class PendingAdmissions:
    """The pending admissions of one session. Thread-safe.

    Admissions of one tenant run one after another, in their order. They mostly need the same worker, and would use up
    their time limits while they wait for each other. Admissions of different tenants run at the same time.

    The number of pending admissions needs no limit of its own: each occupies a slot of the session. A cancelled
    admission that has begun occupies none, but it holds a thread of the principal's share until it ends. The memory of
    their chains needs one, because inline payloads can be large.

    Args:
        submit: runs work on a thread; None if nothing can be admitted in the background.
        max_bytes: the size limit of all chains together.

    Attributes:
        ended: the admissions that have ended and are not reported yet. Only this object changes it.
    """

    def __init__(self, principal: str, submit: Submit | None, max_bytes: int) -> None:
        self._principal = principal
        self._submit = submit
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._by_slot: dict[int, PendingAdmission] = {}
        self._bytes = 0
        # By tenant. The first admission of a queue was submitted.
        self._queues: dict[str, deque[PendingAdmission]] = {}
        self.ended: list[PendingAdmission] = []

    def __len__(self) -> int:
        return len(self._by_slot)

    @property
    def waiting(self) -> int:
        """Number of admissions that have not begun."""
        with self._lock:
            return sum(pending.queue_seconds < 0 for pending in self._by_slot.values())

    def can_begin(self, admission: Admission) -> bool:
        """Whether the request can be admitted in the background."""
        return self._submit is not None and self._bytes + admission.chain_bytes <= self._max_bytes

    def generation_at(self, slot: int) -> int | None:
        """The generation of the pending request that occupies this slot, or None."""
        if not self._by_slot:  # the session's thread alone changes it
            return None
        with self._lock:
            pending = self._by_slot.get(slot)
            return None if pending is None else pending.admission.generation

    def begin(self, admission: Admission, load: Callable[[], None], trace: AdmissionTrace) -> None:
        """Admit a request in the background. A pending admission of its slot is cancelled."""
        admission.detach()
        pending = PendingAdmission(admission, load, time.monotonic(), trace)
        with self._lock:
            self._cancel(admission.slot)
            self._by_slot[admission.slot] = pending
            self._bytes += admission.chain_bytes
            queue = self._queues.setdefault(admission.tenant, deque())
            queue.append(pending)
            if len(queue) == 1:
                self._begin_first(admission.tenant)

    def cancel(self, slot: int, generation: int) -> None:
        """Cancel the admission of this slot and generation, if there is one."""
        if not self._by_slot:
            return
        with self._lock:
            pending = self._by_slot.get(slot)
            if pending is not None and pending.admission.generation == generation:
                self._cancel(slot)

    def take_ended(self) -> list[PendingAdmission]:
        """Return the admissions that have ended, in the order of their ends. Their slots are free."""
        with self._lock:
            taken, self.ended = self.ended, []
            for pending in taken:
                del self._by_slot[pending.admission.slot]
                self._bytes -= pending.admission.chain_bytes
        return taken

    def close(self) -> list[Future[None]]:
        """Cancel all admissions. Returns those that have begun, which end later."""
        running = []
        with self._lock:
            for pending in self._by_slot.values():
                pending.cancelled = True
                pending.trace.cancelled()
            self._by_slot.clear()
            self._bytes = 0
            self.ended.clear()
            for tenant, queue in list(self._queues.items()):
                first = queue[0]
                queue.clear()
                if first.future is not None and first.future.cancel():
                    del self._queues[tenant]
                else:
                    queue.append(first)  # until it ends
                    if first.future is not None:
                        running.append(first.future)
        return running

    def _cancel(self, slot: int) -> None:
        """Cancel the admission of a slot, if there is one. It stops waiting; if it has begun, its result is dropped."""
        pending = self._by_slot.pop(slot, None)
        if pending is None:
            return
        self._bytes -= pending.admission.chain_bytes
        pending.cancelled = True
        pending.trace.cancelled()
        if pending.ended:
            self.ended.remove(pending)
            return
        tenant = pending.admission.tenant
        queue = self._queues[tenant]
        if queue[0] is not pending:
            queue.remove(pending)
        elif pending.future is not None and pending.future.cancel():
            self._go_on(tenant)

    def _run(self, pending: PendingAdmission) -> None:
        pending.begin()
        try:
            if not pending.cancelled:
                pending.load()
        except LogitportError as error:
            pending.error = error
        except Exception as error:  # noqa: BLE001 - otherwise the admission would never end
            pending.error = defects.to_error(error, f"the admission of slot {pending.admission.slot}")
        if pending.error is not None:
            pending.admission.drop()  # it stays until it is reported
        with self._lock:
            self._end(pending)
            self._go_on(pending.admission.tenant)

    def _end(self, pending: PendingAdmission) -> None:
        pending.ended = True
        if not pending.cancelled:
            self.ended.append(pending)

    def _go_on(self, tenant: str) -> None:
        """Drop the first admission of a queue, and begin the next one."""
        queue = self._queues[tenant]
        queue.popleft()
        self._begin_first(tenant)

    def _begin_first(self, tenant: str) -> None:
        """Submit the first admission of a queue. Those that cannot be submitted end with an error."""
        assert self._submit is not None  # noqa: S101 - nothing is begun without it
        queue = self._queues[tenant]
        while queue:
            pending = queue[0]
            try:
                pending.future = self._submit(self._principal, partial(pending.context.run, self._run, pending))
            except RuntimeError as error:  # the server is shutting down
                pending.begin()
                pending.error = LimitExceeded(f"the admission cannot begin: {error}; add the request again later")
                self._end(pending)
                queue.popleft()
            else:
                return
        del self._queues[tenant]
