"""Opens the store that the operator has configured."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from logitport.system.installation import how_to_install
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.registry.stores.base import StoreError
from logitport_server.registry.stores.memory import MemoryStore
from logitport_server.registry.stores.resealing import reseal
from logitport_server.registry.stores.seal import Seal
from logitport_server.registry.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from logitport_server.config import ServerConfig
    from logitport_server.registry.stores.base import Store

# Of an entry, without its payload.
_OTHER_BYTES = 1 << 16
_LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")

logger = logging.getLogger(__name__)


def open_store(config: ServerConfig) -> tuple[Store, Seal]:
    """Open the store of `--store`, and read `--store-key`. Raises StartupError if one of them cannot be used."""
    try:
        seal = Seal() if config.store_key is None else Seal.from_file(config.store_key)
    except (OSError, ValueError) as error:
        raise StartupError(f"--store-key {config.store_key}: {error}") from error
    if config.store is None:
        return MemoryStore(keep_values=False), seal
    store = _open_redis(config.store) if config.has_remote_store else _open_folder(config.store)
    # JSON needs up to two bytes for an ASCII character of a payload, and four for others.
    store.max_value_bytes = _OTHER_BYTES + 4 * config.max_payload_bytes
    if seal.has_older_keys:
        try:
            reseal(store, seal)
        except StoreError as error:
            raise StartupError(f"--store: {error}") from error
    return store, seal


def _open_folder(folder: str) -> Store:
    try:
        return SqliteStore(Path(folder))
    except (OSError, StoreError) as error:
        raise StartupError(f"--store {folder}: {error}") from error


def _open_redis(url: str) -> Store:
    try:
        from logitport_server.registry.stores.redis import RedisStore
    except ImportError as error:
        raise StartupError(
            f"--store redis:// needs the package redis; install it {how_to_install('server', 'redis')}"
        ) from error
    if not (url.startswith("rediss:") or urlsplit(url).hostname in _LOCAL_HOSTS):
        logger.warning("--store redis:// is not encrypted: its password and all code can be read; use rediss://")
    try:
        return RedisStore(url)
    except StoreError as error:
        raise StartupError(f"--store: {error}") from error
