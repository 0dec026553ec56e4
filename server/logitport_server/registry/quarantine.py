"""A circuit breaker for processors that repeatedly terminate or block their workers."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport.errors import ProcessorQuarantined

if TYPE_CHECKING:
    from logitport_server.principals import TrustDomain

logger = logging.getLogger(__name__)

# Only failures within this time count as consecutive.
_WINDOW_SECONDS = 600.0

# Bounds memory: authors can ship any number of processors. The oldest record is evicted.
_MAX_RECORDS = 1024


@dataclass
class _Record:
    failures: list[float] = field(default_factory=list)
    reason: str = ""


class Quarantine:
    """Counts consecutive worker failures for each processor of each trust domain. Thread-safe.

    Args:
        after: number of consecutive failures after which a processor is quarantined.

    Attributes:
        failures: total of all processors.
    """

    def __init__(self, after: int) -> None:
        self.failures = 0
        self._after = after
        self._records: dict[tuple[TrustDomain | None, str], _Record] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(bool(record.reason) for record in tuple(self._records.values()))

    def check(self, domain: TrustDomain | None, digest: str, name: str) -> None:
        """Raise ProcessorQuarantined if the processor must not be called. The message has the given name."""
        record = self._records.get((domain, digest))
        if record is not None and record.reason:
            raise ProcessorQuarantined(
                f"processor {name} is quarantined: {record.reason}; fix it, or have an operator lift the quarantine "
                f"(logitport unquarantine TARGET {digest}, or Client.unquarantine)",
                processor=name,
            )

    def record_failure(self, domain: TrustDomain | None, digest: str, reason: str) -> None:
        """Record that a worker was terminated because of the processor."""
        now = time.monotonic()
        with self._lock:
            self.failures += 1
            record = self._records.setdefault((domain, digest), _Record())
            record.failures = [failed_at for failed_at in record.failures if now - failed_at < _WINDOW_SECONDS]
            record.failures.append(now)
            if len(self._records) > _MAX_RECORDS:
                del self._records[next(iter(self._records))]
            if len(record.failures) < self._after or record.reason:
                return
            record.reason = f"{len(record.failures)} failures in a row, the last one: {reason}"
        logger.error("processor %s of %r is quarantined: %s", digest, domain, record.reason)

    def record_success(self, domain: TrustDomain | None, digest: str) -> None:
        """Record a call with a reply, which resets the count of failures. Loading does not reset it."""
        if self._records:
            with self._lock:
                record = self._records.get((domain, digest))
                if record is not None and not record.reason:
                    del self._records[domain, digest]

    def reason(self, digest: str, owner: str | None = None) -> str:
        """Return why the processor is quarantined in a domain of this owner (None: any owner), or ""."""
        for (domain, found), record in tuple(self._records.items()):
            if found == digest and record.reason and (owner is None or (domain is not None and domain.owner == owner)):
                return record.reason
        return ""

    def lift(self, digest: str) -> bool:
        """Lift the quarantine of the processor in every domain. Returns whether it was quarantined."""
        with self._lock:
            records = [self._records.pop(key) for key in list(self._records) if key[1] == digest]
        was_quarantined = any(record.reason for record in records)
        if was_quarantined:
            logger.info("the quarantine of processor %s was lifted", digest)
        return was_quarantined
