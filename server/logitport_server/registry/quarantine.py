"""A circuit breaker: processors that keep ending or blocking their workers are not called any more."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport.errors import ProcessorQuarantined

if TYPE_CHECKING:
    from logitport_server.principals import Domain

logger = logging.getLogger(__name__)

# Failures further apart than this are no series; seconds.
_SERIES_SECONDS = 600.0

# Authors can ship ever new ones. The one that failed first for the first time is forgotten.
_MOST_RECORDS = 1024


@dataclass
class _Record:
    failures: list[float] = field(default_factory=list)
    reason: str = ""


class Quarantine:
    """Counts, for each processor of each trust domain, the failures in a row that cost a worker.

    Safe to use from several threads.

    Attributes:
        failures: how many there have been, of all processors.
    """

    def __init__(self, after: int) -> None:
        self.failures = 0
        self._after = after
        self._records: dict[tuple[Domain | None, str], _Record] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(bool(record.reason) for record in tuple(self._records.values()))

    def check(self, domain: Domain | None, digest: str, name: str) -> None:
        """Raises ProcessorQuarantined, which tells of it by its name, if the processor must not be called."""
        record = self._records.get((domain, digest))
        if record is not None and record.reason:
            raise ProcessorQuarantined(
                f"processor {name} is quarantined: {record.reason}; correct it, or have an operator release it "
                f"(logitport unquarantine TARGET {digest}, or Client.unquarantine)",
                processor=name,
            )

    def failed(self, domain: Domain | None, digest: str, reason: str) -> None:
        """The processor has cost a worker."""
        now = time.monotonic()
        with self._lock:
            self.failures += 1
            record = self._records.setdefault((domain, digest), _Record())
            record.failures = [then for then in record.failures if now - then < _SERIES_SECONDS]
            record.failures.append(now)
            if len(self._records) > _MOST_RECORDS:
                del self._records[next(iter(self._records))]
            if len(record.failures) < self._after or record.reason:
                return
            record.reason = f"{len(record.failures)} failures in a row, of which the last: {reason}"
        logger.error("processor %s of %r is quarantined: %s", digest, domain, record.reason)

    def went_well(self, domain: Domain | None, digest: str) -> None:
        """A call of the processor was answered: a series of failures has ended. That it can be loaded ends none."""
        if self._records:
            with self._lock:
                record = self._records.get((domain, digest))
                if record is not None and not record.reason:
                    del self._records[domain, digest]

    def reason(self, digest: str, owner: str | None = None) -> str:
        """Why the processor is quarantined, in whichever domain of this owner (any, if None); "" if it is not."""
        for (domain, found), record in tuple(self._records.items()):
            if found == digest and record.reason and (owner is None or (domain is not None and domain.owner == owner)):
                return record.reason
        return ""

    def lift(self, digest: str) -> bool:
        """Let the processor be called again, in every domain; whether it had been quarantined."""
        with self._lock:
            held = [self._records.pop(key) for key in list(self._records) if key[1] == digest]
        was_quarantined = any(record.reason for record in held)
        if was_quarantined:
            logger.info("processor %s was released from quarantine", digest)
        return was_quarantined
