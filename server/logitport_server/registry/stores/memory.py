"""A store in the memory of the process: registrations end with the server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logitport_server.registry.stores.base import Conflict, Index, Store, mismatch, new_revision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_server.registry.stores.base import Write


class MemoryStore(Store):
    """A dictionary. Several catalogs of one process can use it.

    Args:
        keep_values: False to keep only keys and revisions, for one catalog alone: it never reads what it has written.
    """

    def __init__(self, *, keep_values: bool = True) -> None:
        self.id = new_revision()
        self._keep_values = keep_values
        self._lock = threading.Lock()
        self._version = new_revision()
        self._values: dict[str, tuple[str, bytes]] = {}

    def version(self) -> str:
        return self._version

    def index(self) -> Index:
        with self._lock:
            return Index(self._version, {key: revision for key, (revision, _) in self._values.items()})

    def read(self, keys: Sequence[str]) -> dict[str, tuple[str, bytes | None]]:
        with self._lock:
            found = {key: self._values[key] for key in keys if key in self._values}
        return {
            key: (revision, value if len(value) <= self.max_value_bytes else None)
            for key, (revision, value) in found.items()
        }

    def commit(self, writes: Sequence[Write]) -> str:
        with self._lock:
            revisions = {write.key: self._values[write.key][0] for write in writes if write.key in self._values}
            if (key := mismatch(writes, revisions)) is not None:
                raise Conflict(key)
            self._version = new_revision()
            for write in writes:
                if write.value is None:
                    self._values.pop(write.key, None)
                else:
                    self._values[write.key] = (self._version, write.value if self._keep_values else b"")
            return self._version
