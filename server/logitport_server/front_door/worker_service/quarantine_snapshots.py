"""Posts the quarantines that concern each principal to its processes."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport_server.principal_process.worker_messages import Domain, QuarantinedProcessor, QuarantineSnapshot

if TYPE_CHECKING:
    from logitport_server.front_door.running_process import RunningProcess
    from logitport_server.principal_process.worker_messages import RecordFailure, RecordSlowCall
    from logitport_server.registry.quarantine import Quarantine

logger = logging.getLogger(__name__)

# In characters. A process is not trusted to keep to the lengths of its texts.
_MAX_NAME_LENGTH = 1024
_MAX_REASON_LENGTH = 4096
_MAX_SECONDS = 3600.0


class QuarantineSnapshots:
    """Charges processors for processes, and posts a snapshot at each change. Its methods belong to the event loop.

    Args:
        quarantine: has the quarantines of all principals. Any thread may change it.
    """

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False
        # The last snapshot that each process was sent while it ran.
        self._sent: dict[RunningProcess, QuarantineSnapshot] = {}
        quarantine.listen(self._changed)

    def add(self, process: RunningProcess) -> None:
        """Post snapshots to a process from now on."""
        self._loop = asyncio.get_running_loop()
        self._sent[process] = QuarantineSnapshot(own=[], for_all={})
        self._post()

    def remove(self, process: RunningProcess) -> None:
        """Post no further snapshot."""
        self._sent.pop(process, None)

    def record_failure(self, process: RunningProcess, failure: RecordFailure, _descriptors: list[int]) -> None:
        """Handle the failure of a processor in the process."""
        domain = _cut(failure.domain).trust_domain(process.principal)
        digest, reason = failure.digest[:_MAX_NAME_LENGTH], failure.reason[:_MAX_REASON_LENGTH]
        self._quarantine.record_failure(domain, digest, reason, _seconds(failure.seconds))

    def record_slow_call(self, process: RunningProcess, call: RecordSlowCall, _descriptors: list[int]) -> None:
        """Handle a slow call of a processor in the process."""
        domain = _cut(call.domain).trust_domain(process.principal)
        self._quarantine.record_slow_call(domain, call.digest[:_MAX_NAME_LENGTH], _seconds(call.seconds))

    def _changed(self) -> None:
        """Post snapshots soon; at once on the event loop, because the answer of `record_failure` follows them."""
        loop = self._loop
        if loop is None:
            return
        if asyncio._get_running_loop() is loop:
            self._post()
        elif not self._is_scheduled:
            self._is_scheduled = True
            try:
                loop.call_soon_threadsafe(self._post)
            except RuntimeError:  # the event loop has ended
                self._loop = None

    def _post(self) -> None:
        """Post the snapshots that have changed, each as a whole: one that was not sent is sent at the next change."""
        self._is_scheduled = False
        own: defaultdict[str, list[QuarantinedProcessor]] = defaultdict(list)
        for domain, digest, reason in self._quarantine.entries():
            if domain is not None:
                own[domain.party.principal].append(QuarantinedProcessor(Domain.of(domain), digest, reason))
        for_all = self._quarantine.reasons_for_all()
        for process, last in list(self._sent.items()):
            snapshot = QuarantineSnapshot(own=own.get(process.principal, []), for_all=for_all)
            if (last.own, last.for_all) == (snapshot.own, snapshot.for_all):
                continue
            try:
                process.post(snapshot)
            except (LogitportError, OSError):
                logger.warning("the process %d has not received its quarantines", process.process_id, exc_info=True)
                continue
            if process.is_running:
                self._sent[process] = snapshot


def _seconds(stated: float) -> float:
    return stated if 0.0 <= stated <= _MAX_SECONDS else 0.0  # not for NaN


def _cut(domain: Domain) -> Domain:
    return Domain(*(text[:_MAX_NAME_LENGTH] for text in (domain.owner, domain.tenant, domain.digest)))
