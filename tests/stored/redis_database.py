"""The content of a Redis database as JSON, and a database with such content."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.server.registry.stores.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def redis_database(content: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the URL of a Redis server with these hashes, and a client of it. Skips the test if there is no Redis."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            import redis

            with redis.Redis.from_url(server.url, decode_responses=True) as client:
                for key, fields in (content or {}).items():
                    client.hset(key, mapping=dict(fields))
                yield server.url, client
        finally:
            server.kill()


def read_hashes(database: Any) -> dict[str, dict[str, str]]:
    """Return all hashes of a database by key. Every value of the store is text."""
    return {key: dict(sorted(database.hgetall(key).items())) for key in sorted(database.keys())}
