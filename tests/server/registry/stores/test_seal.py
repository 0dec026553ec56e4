"""Seals of stored values, with and without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport_server.registry.stores.seal import InvalidSeal, Seal

if TYPE_CHECKING:
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
    with pytest.raises(ValueError, match=r"has 31 bytes, and needs 32; .*openssl rand -hex 32"):
        Seal.from_file(path)
