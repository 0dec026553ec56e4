"""Stores of each kind, and several instances on one store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport_server.registry.stores.memory import MemoryStore
from logitport_server.registry.stores.sqlite import SqliteStore
from tests.server.registry.stores.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from logitport_server.registry.stores.base import Store


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture(params=["memory", "sqlite", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens further instances on one store."""
    opened: list[Store] = []
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url

    def open_one() -> Store:
        if request.param == "memory":
            return opened[0] if opened else keep(MemoryStore())
        if request.param == "sqlite":
            return keep(SqliteStore(tmp_path / "store"))
        from logitport_server.registry.stores.redis import RedisStore

        return keep(RedisStore(url))

    def keep(store: Store) -> Store:
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
