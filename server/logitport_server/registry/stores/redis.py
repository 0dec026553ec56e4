"""A store in Redis, which servers of many hosts use at the same time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from logitport_server.registry.stores.base import Conflict, Index, Store, StoreError, new_revision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from logitport_server.registry.stores.base import Write

_CONNECT_SECONDS = 2.0
# For each part of a reply, not for all of it. So a large payload over a slow network is no error.
_REPLY_SECONDS = 5.0

# One hash tag, so that the scripts may use all keys. Version 1 of the format.
_META, _REVISIONS, _VALUES = (f"{{logitport}}:1:{name}" for name in ("meta", "revisions", "values"))

# Scripts read, and not MULTI: a Redis without free memory refuses all commands in MULTI, also those that read.
_INDEX = """
return {redis.call('HGET', KEYS[1], 'id'), redis.call('HGET', KEYS[1], 'version'), redis.call('HGETALL', KEYS[2])}
"""
_READ = """
local revision, value = redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[1]) or ''
return {revision, #value <= tonumber(ARGV[2]) and value}
"""

# Compares all revisions before the first write. Redis runs a script as one command, and persists its writes as one.
# ARGV: id of the store, new revision, then key, expected revision, "1" to write or "0" to delete, and value of each.
_COMMIT = """
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 'replaced' end
for i = 3, #ARGV, 4 do
  if (redis.call('HGET', KEYS[2], ARGV[i]) or '') ~= ARGV[i + 1] then return 'conflict' .. ARGV[i] end
end
for i = 3, #ARGV, 4 do
  if ARGV[i + 2] == '1' then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[2])
    redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 3])
  else
    redis.call('HDEL', KEYS[2], ARGV[i])
    redis.call('HDEL', KEYS[3], ARGV[i])
  end
end
redis.call('HSET', KEYS[1], 'version', ARGV[2])
return 'done'
"""


class RedisStore(Store):
    """Three hashes of a Redis database: the values, their revisions, and the version with the id of the store.

    The id is random. A store that has lost its data has another id: it is an error, not a store without entries.

    Args:
        url: redis://HOST:PORT/DATABASE, or rediss:// for TLS, with user and password.

    Raises:
        StoreError: the server cannot be reached, or refuses the user.
    """

    def __init__(self, url: str) -> None:
        self._name = without_password(url)
        options: dict[str, Any] = {"ssl_check_hostname": True} if url.startswith("rediss:") else {}
        try:
            self._client = redis.Redis.from_url(
                url,
                socket_connect_timeout=_CONNECT_SECONDS,
                socket_timeout=_REPLY_SECONDS,
                # A commit that is sent again would conflict with itself. The next poll repeats the reads.
                retry=Retry(NoBackoff(), 0),
                **options,
            )
            with self._reported():
                self._client.hsetnx(_META, "id", new_revision())
                self._id = cast("bytes | None", self._client.hget(_META, "id"))
                self.id = (self._id or b"").decode()
        except ValueError:  # without its text, which may have a part of the password
            raise StoreError(
                f"{self._name} is not a URL of Redis; write special characters of user and password as %40 for @ and "
                "%2F for /"
            ) from None
        except TypeError as error:
            raise StoreError(f"{self._name}: an option after ? is unknown: {error}") from error

    def version(self) -> str:
        with self._reported():
            return self._check(cast("list[bytes | None]", self._client.hmget(_META, ["id", "version"])))

    def index(self) -> Index:
        with self._reported():
            *meta, fields = cast("list[Any]", self._client.eval(_INDEX, 2, _META, _REVISIONS))
            texts = [field.decode() for field in fields]
            return Index(self._check(meta), dict(zip(texts[::2], texts[1::2], strict=True)))

    def read(self, keys: Sequence[str]) -> dict[str, tuple[str, bytes | None]]:
        found = {}
        for key in keys:  # one at a time: a value may have megabytes
            with self._reported():
                revision, value = cast(
                    "list[Any]", self._client.eval(_READ, 2, _REVISIONS, _VALUES, key, str(self.max_value_bytes))
                )
                if revision is not None:
                    found[key] = (revision.decode(), value)
        return found

    def commit(self, writes: Sequence[Write]) -> str:
        revision = new_revision()
        arguments: list[Any] = [self._id, revision]
        for write in writes:
            arguments += (write.key, write.expected, "1" if write.value is not None else "0", write.value or b"")
        with self._reported(sent=True):
            reply = cast("bytes", self._client.eval(_COMMIT, 3, _META, _REVISIONS, _VALUES, *arguments)).decode()
        if reply == "replaced":
            raise self._replaced()
        if reply != "done":
            raise Conflict(reply.removeprefix("conflict"))
        return revision

    def close(self) -> None:
        self._client.close()

    def _check(self, meta: Sequence[bytes | None]) -> str:
        """Return the version. Raises StoreError if the store has another id."""
        found, version = meta
        if found is None or found != self._id:
            raise self._replaced()
        return (version or b"").decode()

    def _replaced(self) -> StoreError:
        return StoreError(
            f"{self._name} has lost its data, or has been replaced; restore its data, or restart this server to use "
            "what is there now"
        )

    @contextmanager
    def _reported(self, *, sent: bool = False) -> Iterator[None]:
        """Context that turns errors of Redis into StoreError. `sent`: it is uncertain if the connection is lost."""
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise StoreError(f"{self._name} cannot be reached: {error}", uncertain=sent) from error
        except (redis.RedisError, UnicodeDecodeError, AttributeError) as error:
            raise StoreError(f"{self._name}: {error}") from error


def without_password(url: str) -> str:
    """Return the address and database of a URL, for messages."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
