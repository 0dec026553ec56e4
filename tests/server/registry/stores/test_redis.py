"""Redis: access, servers that are killed, stopped or replaced, and hostile content."""

from __future__ import annotations

import re
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logitport_server.registry.stores.base import Store, StoreError, Write
from tests.server.registry.stores.redis_servers import RedisServer

redis = pytest.importorskip("redis", reason="needs the extra redis")
from logitport_server.registry.stores.redis import RedisStore  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPERATING_PAGE = Path(__file__).parents[4] / "docs" / "operating.md"

CALLS: dict[str, Callable[[Store], object]] = {
    "version": lambda store: store.version(),
    "index": lambda store: store.index(),
    "read": lambda store: store.read(["a"]),
    "commit": lambda store: store.commit([Write("b", b"2")]),
}


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(redis_server.url)
    yield store
    store.close()


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    client = redis.Redis(port=redis_server.port)
    yield client
    client.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_killed_server_that_comes_back(
    redis_server: RedisServer, store: RedisStore, call: Callable[[Store], object]
) -> None:
    revision = store.commit([Write("a", b"1")])
    redis_server.kill()
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{redis_server.port}/0 cannot be reached"):
            call(store)
    redis_server.start()
    assert store.read(["a"]) == {"a": (revision, b"1")}
    call(store)


def test_a_server_that_does_not_reply(
    redis_server: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setattr("logitport_server.registry.stores.redis._REPLY_SECONDS", 0.2)
    store = RedisStore(redis_server.url)
    store.commit([Write("a", b"1")])
    redis_server.signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(StoreError, match="cannot be reached") as of_read:
        store.version()
    with pytest.raises(StoreError, match="cannot be reached") as of_commit:
        store.commit([Write("b", b"1")])
    assert time.monotonic() - began < 10
    assert not of_read.value.uncertain
    assert of_commit.value.uncertain
    redis_server.signal(signal.SIGCONT)
    assert store.read(["a"])["a"][1] == b"1"
    store.close()


def test_a_server_without_its_data_is_not_an_empty_store(redis_server: RedisServer, raw: redis.Redis) -> None:
    store = RedisStore(redis_server.url)
    store.commit([Write("a", b"1")])
    saved = {key: raw.dump(key) for key in raw.scan_iter()}
    raw.flushall()
    for again in (False, True):
        if again:
            RedisStore(redis_server.url).close()  # begins with an empty store, of another id
        for call in (CALLS["version"], CALLS["index"], CALLS["commit"]):
            with pytest.raises(StoreError, match="has lost its data"):
                call(store)
    raw.flushall()
    for key, value in saved.items():
        raw.restore(key, 0, value)
    assert store.read(["a"])["a"][1] == b"1"
    store.version()
    store.close()


def test_a_full_server(store: RedisStore, raw: redis.Redis) -> None:
    store.commit([Write("a", b"1"), Write("b", b"1")])
    before = store.index()
    held = before.revisions["a"]
    raw.config_set("maxmemory", "1")
    with pytest.raises(StoreError, match="maxmemory") as raised:
        store.commit([Write("c", bytes(100)), Write("d", b""), Write("a", None, held)])
    assert not raised.value.uncertain
    assert store.index() == before
    # Redis completes a script that begins with a deletion.
    store.commit([Write("a", None, held), Write("c", bytes(100)), Write("d", b"")])
    assert store.index().revisions.keys() == {"b", "c", "d"}


@pytest.mark.parametrize("name", ["meta", "revisions", "values"])
@pytest.mark.parametrize("content", ["text", "binary fields", "missing"])
def test_content_that_no_server_wrote(store: RedisStore, raw: redis.Redis, name: str, content: str) -> None:
    """Each call returns, or raises StoreError."""
    store.commit([Write("a", b"1")])
    key = f"{{logitport}}:1:{name}"
    if content == "binary fields":
        raw.hset(key, mapping={b"\xff": b"\xfe", "a": b"\xfe", "version": b"\xff"})
    else:
        raw.delete(key)
        if content == "text":
            raw.set(key, "hello")
    for call in CALLS.values():
        with suppress(StoreError):
            call(store)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://u:secret@127.0.0.1:{port}/0", "redis://127.0.0.1:{port}/0 cannot be reached: invalid username"),
        ("redis://u:sec/ret@127.0.0.1:{port}/0", "redis://127.0.0.1:{port}/0 is not a URL of Redis; .* %2F for /"),
        ("redis://127.0.0.1:{port}/0?secret=1", "redis://127.0.0.1:{port}/0: an option after \\? is unknown"),
        ("redis://127.0.0.1:{closed}/0", "cannot be reached: .*refused"),
        ("rediss://u:secret@127.0.0.1:{port}/0", "rediss://127.0.0.1:{port}/0 cannot be reached"),
    ],
)
def test_a_start_without_access(
    redis_server: RedisServer, url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logitport_server.registry.stores.redis._REPLY_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    places = {"port": str(redis_server.port), "closed": str(closed)}
    for name, port in places.items():
        url, message = url.replace(f"{{{name}}}", port), message.replace(f"{{{name}}}", port)
    with pytest.raises(StoreError, match=message) as raised:
        RedisStore(url)
    assert "secret" not in str(raised.value) or "?secret" in url
    assert "sec/" not in str(raised.value)


def test_the_user_of_the_documentation(tmp_path: Path) -> None:
    """It can do what a store does, and nothing else."""
    (line,) = re.findall("^user logitport .*", OPERATING_PAGE.read_text(), re.MULTILINE)
    server = RedisServer(tmp_path, "--user", *line.replace("PASSWORD", "a@b/c").split()[1:])
    url = f"redis://logitport:a%40b%2Fc@127.0.0.1:{server.port}/0"
    try:
        store = RedisStore(url)
        revision = store.commit([Write("a", b"1")])
        assert store.read(["a"]) == {"a": (revision, b"1")}
        store.commit([Write("a", None, store.index().revisions["a"])])
        assert not store.index().revisions
        store.close()
        with redis.Redis.from_url(url) as client:
            for refused in (client.flushall, client.config_get, lambda: client.get("other")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    refused()
    finally:
        server.kill()
