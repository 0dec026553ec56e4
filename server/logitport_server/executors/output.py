"""Output of processors in workers, kept for the principals of the requests."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logitport_server.principals import TrustDomain
    from logitport_server.registry.source import Source

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
        name: display name of the processor.
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
    processor gets that of its own requests only.
    """

    def __init__(self) -> None:
        # By calling principal and digest, the least recently used first.
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def record(self, domain: TrustDomain | None, source: Source, text: str) -> None:
        """Keep the output of a call in a worker of this trust domain."""
        if not text or domain is None:
            return
        key = domain.party.principal, source.key
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                kept = self._kept[key] = _Kept(source.display_name, counted_at=time.monotonic())
                self._make_room(key[0])
            self._kept.move_to_end(key)
            kept.add(text[:MAX_TEXT_LENGTH], time.monotonic())

    def read(self, principal: str, digest: str) -> tuple[str, list[Printed], int] | None:
        """Return a processor's display name, its output for this principal, oldest first, and the dropped characters.

        None if it has printed nothing for this principal.
        """
        with self._lock:
            kept = self._kept.get((principal, digest))
            return None if kept is None else (kept.name, list(kept.printed), kept.dropped)

    def _make_room(self, principal: str) -> None:
        """Drop the oldest output of the principal, or else of the principal with most, if there is too much."""
        own = [key for key in self._kept if key[0] == principal]
        if len(own) > _MAX_OF_PRINCIPAL:
            del self._kept[own[0]]
        elif len(self._kept) > _MAX_PROCESSORS:
            most = Counter(name for name, _ in self._kept).most_common(1)[0][0]
            del self._kept[next(key for key in self._kept if key[0] == most)]
