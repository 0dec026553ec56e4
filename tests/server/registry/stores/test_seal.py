"""Seals of stored values, with and without a key, and the rotation of the fleet's key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport_server.registry.stores.base import Store, Write
from logitport_server.registry.stores.memory import MemoryStore
from logitport_server.registry.stores.resealing import reseal
from logitport_server.registry.stores.seal import InvalidSeal, Seal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PLAIN, KEYED, OTHER = Seal(), Seal(b"k" * 32), Seal(b"o" * 32)
DATA = '{"owner":"é"}\n\n'.encode()


@pytest.mark.parametrize("seal", [PLAIN, KEYED])
def test_sealed_values_are_returned(seal: Seal) -> None:
    for data in (DATA, b"", b"\n"):
        assert seal.remove("name/a", seal.add("name/a", data)) == data


def test_the_hmac_of_a_known_value() -> None:
    """HMAC-SHA-256 of "1:a" + "data" with the key 32 x "k", by `openssl dgst -sha256 -hmac`."""
    digest = b"336664d69b2bdd64087798dfbc8d099e91cf0ef4490e2e26131b595eb71c32d4"
    assert KEYED.add("a", b"data").split(b"\n")[0] == b"hmac-sha256 " + digest


@pytest.mark.parametrize("seal", [PLAIN, KEYED])
def test_any_changed_or_missing_byte(seal: Seal) -> None:
    sealed = seal.add("name/a", DATA)
    for at in range(len(sealed)):
        for changed in (sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], sealed[:at]):
            with pytest.raises(InvalidSeal):
                seal.remove("name/a", changed)


@pytest.mark.parametrize("seal", [PLAIN, KEYED])
def test_a_value_cannot_be_moved(seal: Seal) -> None:
    for key, data in (("name/b", DATA), ("name/", b"a" + DATA), ("name/a" + DATA.decode(), b"")):
        with pytest.raises(InvalidSeal):
            seal.remove("name/a", seal.add(key, data))


@pytest.mark.parametrize(
    ("written", "read", "message"),
    [
        (KEYED, PLAIN, "start the server with the fleet's --store-key"),
        (PLAIN, KEYED, "written without a key, before --store-key was set"),
        (OTHER, KEYED, "its HMAC does not match --store-key"),
    ],
)
def test_other_keys(written: Seal, read: Seal, message: str) -> None:
    with pytest.raises(InvalidSeal, match=message):
        read.remove("a", written.add("a", DATA))


def test_a_key_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"  " + b"k" * 32 + b"\n")
    assert Seal.from_file(path).add("a", DATA) == KEYED.add("a", DATA)
    path.write_bytes(b"k" * 31 + b"\n")
    with pytest.raises(ValueError, match="31 bytes"):
        Seal.from_file(path)


def test_a_file_with_several_keys(tmp_path: Path) -> None:
    """The first one seals, and all are valid."""
    path = tmp_path / "key"
    path.write_bytes(b"\n" + b"k" * 32 + b" \r\n\n" + b"o" * 32 + b"\n")
    seal = Seal.from_file(path)
    assert seal.has_older_keys
    assert not KEYED.has_older_keys
    assert seal.add("a", DATA) == KEYED.add("a", DATA)
    for written in (KEYED, OTHER):
        assert seal.remove("a", written.add("a", DATA)) == DATA
    with pytest.raises(InvalidSeal):
        seal.remove("a", Seal(b"x" * 32).add("a", DATA))
    path.write_bytes(b"k" * 32 + b"\n" + b"short\n")
    with pytest.raises(ValueError, match=r"key 2 has 5 bytes, and needs 32"):
        Seal.from_file(path)


@pytest.mark.parametrize("content", [b"\xff" * 16 + b"\n" + b"\xff" * 16, b"\xff" + b"k" * 32 + b"\n" + b"o" * 32])
def test_a_key_of_random_bytes_may_have_line_feeds(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    assert Seal.from_file(path).add("a", DATA) == Seal(content).add("a", DATA)


def test_a_file_that_all_users_can_write(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o602)
    with pytest.raises(ValueError, match="all users can write it; run: chmod o-w"):
        Seal.from_file(path)


OLD, NEW = Seal(b"o" * 32), Seal(b"n" * 32)
BOTH = Seal(b"n" * 32, b"o" * 32)


def values(store: Store) -> dict[str, bytes]:
    return {key: value for key, (_, value) in store.read(list(store.index().revisions)).items()}


def test_values_of_the_old_key_get_the_new_one(open_store: Callable[[], Store]) -> None:
    store = open_store()
    store.commit([Write(key, OLD.add(key, b"data")) for key in ("a", "b")])
    store.commit([Write("c", NEW.add("c", b"data"))])
    before = store.index().revisions["c"]
    assert reseal(store, BOTH) == 2
    assert values(store) == {key: NEW.add(key, b"data") for key in ("a", "b", "c")}
    assert store.index().revisions["c"] == before
    assert reseal(store, BOTH) == 0


def test_values_without_a_valid_seal_stay(open_store: Callable[[], Store]) -> None:
    """A value of a key that the file does not have must not become valid."""
    store = open_store()
    invalid = {"a": Seal(b"x" * 32).add("a", b""), "b": Seal().add("b", b""), "c": OLD.add("a", b""), "d": b""}
    store.commit([Write(key, value) for key, value in invalid.items()])
    assert reseal(store, BOTH) == 0
    assert values(store) == invalid
    store.max_value_bytes = 10
    assert reseal(store, BOTH) == 0


def test_a_value_that_another_server_changes_meanwhile() -> None:
    class Contended(MemoryStore):
        def commit(self, writes: Sequence[Write]) -> str:
            if others:
                change, value = others.pop()
                super().commit([Write(change, value, self.index().revisions[change])])
            return super().commit(writes)

    others: list[tuple[str, bytes]] = []
    store = Contended()
    store.commit([Write("a", OLD.add("a", b"1"))])
    others.append(("a", OLD.add("a", b"2")))
    assert reseal(store, BOTH) == 1
    assert values(store) == {"a": NEW.add("a", b"2")}
