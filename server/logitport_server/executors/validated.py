"""Parameters that processors have accepted, so that the same parameters are checked once."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

from logitport.core.bounded import BoundedTable

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMIT = 256


class ValidatedParams:
    """Remembers which parameters the processors of one trust domain have accepted. Thread-safe.

    An engine's front end tries a chain before the engine admits the request. Without this memory, a slow check would
    run again while the engine waits.

    Each trust domain has its own object. So an acceptance is valid for one owner, caller and tenant, and no party
    evicts entries of another. The key has the processor's digest, so another payload under the same name is checked
    again. Refusals are not kept. Entries are hashes, so their size does not depend on the parameters.

    Args:
        limit: the maximum number of entries. The one that was used least recently is evicted.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._lock = threading.Lock()
        self._accepted: BoundedTable[bytes, bool] = BoundedTable(limit)

    def __len__(self) -> int:
        return len(self._accepted)

    def has(self, processor: str, columns: Sequence[bytes]) -> bool:
        """Whether the processor with this key has accepted these columns of `messages.Validate`."""
        entry = _hash(processor, columns)
        with self._lock:
            return self._accepted.use(entry) is not None

    def add(self, processor: str, columns: Sequence[bytes]) -> None:
        """Record that the processor has accepted these columns."""
        entry = _hash(processor, columns)
        with self._lock:
            self._accepted[entry] = True


def _hash(processor: str, columns: Sequence[bytes]) -> bytes:
    hashed = hashlib.blake2b(digest_size=32)
    for part in (processor.encode(), *columns):
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return hashed.digest()
