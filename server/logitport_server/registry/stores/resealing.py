"""Seals the values of a store with a new key: a step of the rotation of the fleet's key."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport_server.registry.stores.base import Conflict, Write
from logitport_server.registry.stores.seal import InvalidSeal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_server.registry.stores.base import Store
    from logitport_server.registry.stores.seal import Seal

logger = logging.getLogger(__name__)

# Bounds repetitions while other servers change the same keys. Each repetition means that another server made a change.
_MAX_ATTEMPTS = 50


def reseal(store: Store, seal: Seal) -> int:
    """Seal the values again that have a valid seal of an older key. Other values stay as they are.

    Returns:
        The number of values that were written.

    Raises:
        StoreError: the store cannot be read or written.
    """
    written = 0
    for _ in range(_MAX_ATTEMPTS):
        has_conflict = False
        for write in _outdated(store, seal):
            try:
                store.commit([write])
                written += 1
            except Conflict:  # another server has changed it, possibly with an older key
                has_conflict = True
        if not has_conflict:
            break
    if written:
        logger.info("sealed %d entries of the store with the first key of --store-key", written)
    return written


def _outdated(store: Store, seal: Seal) -> Iterator[Write]:
    for key in store.index().revisions:
        for revision, value in store.read([key]).values():
            try:
                sealed = value if value is None else seal.add(key, seal.remove(key, value))
            except InvalidSeal:
                continue
            if sealed != value:
                yield Write(key, sealed, revision)
