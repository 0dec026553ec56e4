"""A circuit breaker for processors that take too much time of their callers' engines."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport.errors import ProcessorFailed
from logitport_session.trust.principals import log_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logitport_session.trust.principals import TrustDomain

    _Key = tuple[TrustDomain | None, str]

logger = logging.getLogger(__name__)

# How long a charge counts.
_WINDOW_SECONDS = 600.0

# A successful call is charged if it takes more than this part of the call timeout.
_SLOW = 0.5

# A processor that is quarantined for so many principals is quarantined for all. One principal alone must not be able
# to quarantine a shared processor for others: the principal chooses the parameters of its calls.
_MAX_PRINCIPALS = 3

# Bound memory. Records belong to the calling principal, so that one principal cannot evict the records of another.
_MAX_RECORDS_OF_PRINCIPAL = 128
_MAX_PRINCIPALS_WITH_RECORDS = 1024


@dataclass
class _Record:
    """Charges to one processor in one trust domain.

    Attributes:
        charges: (time, seconds) of each charge in the window.
        reason: why the processor is quarantined; "" if it is not.
    """

    charges: list[tuple[float, float]] = field(default_factory=list)
    reason: str = ""


class Quarantine:
    """Charges processors the seconds that they take, and quarantines those that take too many. Thread-safe.

    A failure that ended a worker is charged at least the call timeout. A slow call is charged its seconds. A success
    does not clear charges: otherwise a processor that hangs at every second call would never be quarantined. Charges
    are kept for each trust domain, which includes the calling party.

    Args:
        after: a processor is quarantined when the charges of ten minutes reach this number of call timeouts.
        call_seconds: the call timeout.
        clock: returns monotonic seconds.

    Attributes:
        failures: total of all processors.
    """

    def __init__(self, after: int, call_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._after = after
        self._call_seconds = call_seconds
        self._slow_seconds = call_seconds * _SLOW
        self._clock = clock
        # By principal, then by trust domain and digest. Both are in the order of their last charge.
        self._records: dict[str, dict[_Key, _Record]] = {}
        # The quarantined records, by digest, then by trust domain.
        self._quarantined: dict[str, dict[TrustDomain | None, _Record]] = {}
        # Quarantines that began or were forgotten since `take_changes`; None without a store.
        self._changes: set[_Key] | None = None
        self._on_change: Callable[[], object] = lambda: None
        self._listeners: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, tuple(self._quarantined.values())))

    def check(self, domain: TrustDomain | None, digest: str, name: str) -> None:
        """Raise ProcessorFailed if the processor must not be called. The message has the given name."""
        reason = self._reason_now(domain, digest)
        if reason:
            raise ProcessorFailed(
                f"processor {name} is quarantined: {reason}; fix it, or have an operator lift the quarantine "
                f"(logitport processors unquarantine TARGET {digest}, or ServerClient.unquarantine)",
                processor=name,
                code=ProcessorFailed.QUARANTINED,
            )

    def _reason_now(self, domain: TrustDomain | None, digest: str) -> str:
        """Return why the processor must not be called in this domain, or ""."""
        found = self._quarantined.get(digest)
        if found is None:
            return ""
        record = found.get(domain)
        return record.reason if record is not None else _reason_for_all(found)

    def record_failure(self, domain: TrustDomain | None, digest: str, reason: str, seconds: float = 0.0) -> None:
        """Record that a worker was terminated because of the processor, after a call of this many seconds."""
        with self._lock:
            self.failures += 1
        self._charge(domain, digest, max(seconds, self._call_seconds), reason)

    def record_call(self, domain: TrustDomain | None, digest: str, seconds: float) -> None:
        """Record a call with a reply that took this many seconds."""
        if seconds > self._slow_seconds:
            self.record_slow_call(domain, digest, seconds)

    def record_slow_call(self, domain: TrustDomain | None, digest: str, seconds: float) -> None:
        """Charge a call that has taken much of the call timeout."""
        self._charge(
            domain, digest, seconds, f"a call took {seconds:.3g} s of the {self._call_seconds:g} s that it may take"
        )

    def reason(self, digest: str, owner: str | None = None) -> str:
        """Return why the processor is quarantined in a domain of this owner (None: any owner), or ""."""
        for domain, record in tuple(self._quarantined.get(digest, {}).items()):
            if owner is None or (domain is not None and domain.owner == owner):
                return record.reason
        return ""

    def reason_in(self, domain: TrustDomain | None, digest: str) -> str:
        """Return why the processor is quarantined in this domain, or ""."""
        record = self._quarantined.get(digest, {}).get(domain)
        return "" if record is None else record.reason

    def entries(self) -> list[tuple[TrustDomain | None, str, str]]:
        """Return domain, digest and reason of each quarantine, the oldest first."""
        with self._lock:
            return [
                (domain, digest, record.reason)
                for digest, found in self._quarantined.items()
                for domain, record in found.items()
            ]

    def reasons_for_all(self) -> dict[str, str]:
        """Return, by digest, why processors are quarantined for all callers."""
        with self._lock:
            reasons = {digest: _reason_for_all(found) for digest, found in self._quarantined.items()}
        return {digest: reason for digest, reason in reasons.items() if reason}

    def listen(self, on_change: Callable[[], object]) -> None:
        """Call this after quarantines may have begun or ended, on the thread of the change. It must not wait."""
        self._listeners.append(on_change)

    def track_changes(self, on_change: Callable[[], object] = lambda: None) -> None:
        """Collect changes for `take_changes`. Something must call it at intervals from now on.

        Args:
            on_change: called when there is one. It must not wait.
        """
        self._changes = set()
        self._on_change = on_change

    def take_changes(self) -> set[_Key]:
        """Return the domains and digests of quarantines that have begun or were evicted since the last call."""
        with self._lock:
            changes, self._changes = self._changes, None if self._changes is None else set()
        return changes or set()

    def put_back(self, changes: Iterable[_Key]) -> None:
        """Have the next `take_changes` return these again."""
        with self._lock:
            if self._changes is not None:
                self._changes.update(changes)

    def adopt(self, domain: TrustDomain | None, digest: str, reason: str) -> None:
        """Quarantine a processor that another server has quarantined."""
        with self._lock:
            record = self._record(domain, digest)
            record.reason, record.charges = reason, []
            self._quarantined.setdefault(digest, {})[domain] = record
        logger.warning(
            "processor %s of %r was quarantined by another server: %s",
            digest,
            domain,
            reason,
            extra=_fields("quarantined_elsewhere", domain, digest),
        )
        self._changed()

    def forget(self, domain: TrustDomain | None, digest: str) -> None:
        """End a quarantine that has ended on another server."""
        with self._lock:
            records = self._records.get(_principal(domain), {})
            if (domain, digest) in records:
                self._forget(records, (domain, digest))
        logger.info(
            "the quarantine of processor %s of %r ended on another server",
            digest,
            domain,
            extra=_fields("quarantine_lifted", domain, digest),
        )
        self._changed()

    def lift(self, digest: str) -> bool:
        """Lift the quarantine of the processor in every domain. Returns whether it was quarantined."""
        with self._lock:
            was_quarantined = self._quarantined.pop(digest, None) is not None
            for records in self._records.values():
                for key in [key for key in records if key[1] == digest]:
                    del records[key]
        if was_quarantined:
            logger.info(
                "the quarantine of processor %s was lifted", digest, extra=_fields("quarantine_lifted", None, digest)
            )
            self._changed()
        return was_quarantined

    def _charge(self, domain: TrustDomain | None, digest: str, seconds: float, what: str) -> None:
        try:
            self._add_charge(domain, digest, seconds, what)
        finally:
            self._changed()  # its record may have evicted a quarantine

    def _changed(self) -> None:
        for on_change in self._listeners:
            on_change()

    def _add_charge(self, domain: TrustDomain | None, digest: str, seconds: float, what: str) -> None:
        now = self._clock()
        with self._lock:
            record = self._record(domain, digest)
            if record.reason:
                return
            record.charges = [charge for charge in record.charges if now - charge[0] < _WINDOW_SECONDS]
            record.charges.append((now, seconds))
            total, limit = sum(charged for _, charged in record.charges), self._after * self._call_seconds
            if total < limit:
                return
            record.reason = (
                f"{len(record.charges)} failures or slow calls within {_WINDOW_SECONDS:.0f} s were charged "
                f"{total:.3g} s, the limit is {limit:.3g} s (--quarantine-after), the last one: {what}"
            )
            record.charges = []
            self._note((domain, digest))
            found = self._quarantined.setdefault(digest, {})
            found[domain] = record
            for_all = _reason_for_all(found)
        logger.error(
            "processor %s of %r is quarantined: %s",
            digest,
            domain,
            record.reason,
            extra=_fields("quarantined", domain, digest),
        )
        if for_all:
            logger.error("processor %s is quarantined for all callers: %s", digest, for_all)

    def _record(self, domain: TrustDomain | None, digest: str) -> _Record:
        """Return the record, which is created if needed, and make it the last in order."""
        principal, key = _principal(domain), (domain, digest)
        if principal not in self._records and len(self._records) >= _MAX_PRINCIPALS_WITH_RECORDS:
            self._forget_principal()
        records = self._records.pop(principal, {})
        self._records[principal] = records
        if key not in records and len(records) >= _MAX_RECORDS_OF_PRINCIPAL:
            self._forget(records, next((old for old in records if not records[old].reason), next(iter(records))))
        record = records.pop(key, None) or _Record()
        records[key] = record
        return record

    def _forget_principal(self) -> None:
        """Evict the principal with the oldest charge; one with a quarantined processor only if all have one."""
        harmless = (
            principal
            for principal, records in self._records.items()
            if not any(record.reason for record in records.values())
        )
        records = self._records.pop(next(harmless, next(iter(self._records))))
        for key in list(records):
            self._forget(records, key)

    def _forget(self, records: dict[_Key, _Record], key: _Key) -> None:
        domain, digest = key
        if records.pop(key).reason:
            self._note(key)
        found = self._quarantined.get(digest, {})
        found.pop(domain, None)
        if not found:
            self._quarantined.pop(digest, None)

    def _note(self, key: _Key) -> None:
        if self._changes is not None:
            self._changes.add(key)
            self._on_change()


def _principal(domain: TrustDomain | None) -> str:
    return "" if domain is None else domain.party.principal


def _reason_for_all(found: dict[TrustDomain | None, _Record]) -> str:
    """Return why the processor with these quarantined records is quarantined for all callers; "" if it is not."""
    records = tuple(found.items())
    if len(records) < _MAX_PRINCIPALS:
        return ""
    principals = {_principal(domain) for domain, _ in records}
    if len(principals) < _MAX_PRINCIPALS:
        return ""
    return f"it is quarantined for {len(principals)} principals, for the last one because: {records[-1][1].reason}"


def _fields(event: str, domain: TrustDomain | None, digest: str) -> dict[str, str]:
    return {"event": event, "processor": digest, **log_fields(domain)}
