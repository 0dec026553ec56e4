"""Output of processors in workers, kept for the principals of the requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from logitport.system.bounded import BoundedTable

if TYPE_CHECKING:
    from logitport_session.processor_sources.source import Source
    from logitport_session.trust.principals import TrustDomain

# In characters. A worker is not trusted, so its texts are cut again here.
MAX_TEXT_LENGTH = 4096
_KEPT_LENGTH = 64 << 10
_KEPT_CALLS = 1024
# A processor may print this much at once, and then this much in a second.
_BURST_LENGTH = 64 << 10
_LENGTH_PER_SECOND = 16 << 10
# Processors with output that is kept: of one principal, and of all.
_MAX_OF_PRINCIPAL = 64
_MAX_PROCESSORS = 512


class Printed(NamedTuple):
    """The output of one call: the text, and when it arrived, in seconds since the Unix epoch."""

    text: str
    time: float


@dataclass
class _Kept:
    """The output of one processor for one principal.

    Attributes:
        printed: the last calls with output.
        length: characters of all their texts.
        dropped: characters that were left out since.
        allowance: characters that are accepted now, as of `counted_at`, in time.monotonic() seconds.
    """

    name: str
    printed: deque[Printed] = field(default_factory=deque)
    length: int = 0
    dropped: int = 0
    allowance: float = _BURST_LENGTH
    counted_at: float = 0.0

    def add(self, text: str, now: float) -> None:
        self.allowance = min(_BURST_LENGTH, self.allowance + (now - self.counted_at) * _LENGTH_PER_SECOND)
        self.counted_at = now
        if len(text) > self.allowance:
            self.dropped += len(text)
            return
        self.allowance -= len(text)
        self.printed.append(Printed(text, time.time()))
        self.length += len(text)
        while self.length > _KEPT_LENGTH or len(self.printed) > _KEPT_CALLS:
            oldest = len(self.printed.popleft().text)
            self.length -= oldest
            self.dropped += oldest


class OutputLog:
    """Keeps the last output of each processor, apart for each calling principal. Thread-safe.

    A worker serves one calling principal, so its output shows the data of no other one. The author of a shared
    processor gets the output of its own requests only.
    """

    def __init__(self) -> None:
        # By calling principal, the least recently used first, then by digest.
        self._kept: dict[str, BoundedTable[str, _Kept]] = {}
        self._lock = threading.Lock()

    def record(self, domain: TrustDomain | None, source: Source, text: str) -> None:
        """Keep the output of a call in a worker of this trust domain."""
        if text and domain is not None:
            self.add(domain.party.principal, source.key, source.display_name, text)

    def add(self, principal: str, key: str, name: str, text: str) -> None:
        """Keep the output of a call of the processor with this key and display name, for this principal."""
        now = time.monotonic()
        with self._lock:
            own = self._kept.pop(principal, None) or BoundedTable(_MAX_OF_PRINCIPAL)
            self._kept[principal] = own
            own[key] = kept = own.get(key) or _Kept(name, counted_at=now)
            kept.add(text[:MAX_TEXT_LENGTH], now)
            if sum(map(len, self._kept.values())) > _MAX_PROCESSORS:
                self._drop_oldest()

    def read(self, principal: str, digest: str) -> tuple[str, list[Printed], int] | None:
        """Return a processor's display name, its output for this principal, oldest first, and the dropped characters.

        None if it has printed nothing for this principal.
        """
        with self._lock:
            kept = self._kept[principal].get(digest) if principal in self._kept else None
            return None if kept is None else (kept.name, list(kept.printed), kept.dropped)

    def _drop_oldest(self) -> None:
        """Drop the oldest output of the principal with the most processors."""
        most = max(self._kept, key=lambda principal: len(self._kept[principal]))
        self._kept[most].popitem(last=False)
        if not self._kept[most]:
            del self._kept[most]
