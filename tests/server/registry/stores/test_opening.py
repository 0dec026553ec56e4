"""The store of the operator's options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.config import ServerConfig
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.registry.stores import opening
from logitport_server.registry.stores.base import Write
from logitport_server.registry.stores.memory import MemoryStore
from logitport_server.registry.stores.opening import open_store
from logitport_server.registry.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("k" * 32)
    return path


def test_a_folder_with_a_key(tmp_path: Path, key: Path) -> None:
    assert isinstance(open_store(ServerConfig())[0], MemoryStore)
    store, seal = open_store(ServerConfig(store=str(tmp_path / "store"), store_key=key))
    assert isinstance(store, SqliteStore)
    assert seal.add("a", b"").startswith(b"hmac-sha256 ")
    store.close()


def test_a_new_key_and_the_old_one(tmp_path: Path, key: Path) -> None:
    """Values sealed with the old key are sealed with the new one at the start."""
    options = {"store": str(tmp_path / "store"), "store_key": key}
    store, seal = open_store(ServerConfig(**options))
    store.commit([Write("a", seal.add("a", b"data"))])
    store.close()
    key.write_text("n" * 32 + "\n" + "k" * 32 + "\n")
    open_store(ServerConfig(**options))[0].close()
    key.write_text("n" * 32)
    store, seal = open_store(ServerConfig(**options))
    assert seal.remove("a", store.read(["a"])["a"][1]) == b"data"
    store.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": "{folder}/key"}, r"--store .*/key: .*exists"),
        ({"store": "{folder}/store", "store_key": "{folder}/missing"}, "--store-key .*/missing: .*No such file"),
        ({"store": "{folder}/store", "store_key": "{folder}/short"}, "--store-key .*/short: the key has 5 bytes"),
        ({"store": "{folder}/damaged"}, "--store .*registry.db is damaged"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, key: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "short").write_text("short")
    (tmp_path / "damaged").mkdir(mode=0o700)
    (tmp_path / "damaged" / "registry.db").write_text("hello")
    given = {name: value.replace("{folder}", str(tmp_path)) for name, value in options.items()}
    with pytest.raises(StartupError, match=message):
        open_store(ServerConfig(**given))


def test_without_the_client_library(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "logitport_server.registry.stores.redis", None)
    with pytest.raises(StartupError, match=r"pip install '\.\[server,redis\]'"):
        open_store(ServerConfig(store="redis://127.0.0.1:1/0", store_key=key))


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("redis://10.0.0.1:1/0", True),
        ("rediss://10.0.0.1:1/0", False),
        ("redis://u:p@127.0.0.1:1/0", False),
        ("redis://[::1]:1/0", False),
    ],
)
def test_a_network_without_encryption(
    url: str, warns: bool, key: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    redis = pytest.importorskip("logitport_server.registry.stores.redis", reason="needs the extra redis")
    monkeypatch.setattr(redis, "RedisStore", lambda url: MemoryStore())
    opening.open_store(ServerConfig(store=url, store_key=key))
    assert ("is not encrypted" in caplog.text) == warns
