"""Which programs an engine's process runs itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from logitport import InvalidArgument, payload
from logitport.session.requests.program_trust import KEYS_VARIABLE, VARIABLE, LeftToServer, ProgramTrust
from logitport_builtins import BUILTIN_PROGRAMS
from tests.programs.runtime import build

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = build.temperature().program
DATA = PROGRAM.to_bytes()
KEY = Ed25519PrivateKey.generate()
SIGNED = payload.sign(payload.seal_program(DATA, "Temperature"), KEY, name="team/one")
SIGNATURE = orjson.dumps(orjson.loads(SIGNED)["signature"])


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path))
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "one.pub").write_bytes(public)
    return tmp_path


def trusts(trust: ProgramTrust, signature: bytes = b"", data: bytes = DATA) -> bool:
    try:
        trust.check(payload.parse(payload.seal_program(data, "")).digest, data, signature)
    except LeftToServer:
        return False
    return True


@pytest.mark.usefixtures("keys")
def test_signed_programs_are_trusted() -> None:
    trust = ProgramTrust("trusted")
    assert trusts(trust, SIGNATURE)
    assert not trusts(trust)
    assert not trusts(trust, SIGNATURE, build.min_p().program.to_bytes())


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    "signature",
    [
        b"{",
        b"[]",
        b"{}",
        orjson.dumps({**orjson.loads(SIGNATURE), "expires": 1}),
        orjson.dumps({**orjson.loads(SIGNATURE), "key": "0" * 64}),
        orjson.dumps({**orjson.loads(SIGNATURE), "name": "team/two"}),
    ],
)
def test_bad_signatures(signature: bytes) -> None:
    assert not trusts(ProgramTrust("trusted"), signature)


@pytest.mark.usefixtures("keys")
def test_an_expired_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    expired = payload.sign(payload.seal_program(DATA, "Temperature"), KEY, seconds=-1)
    assert not trusts(ProgramTrust("trusted"), orjson.dumps(orjson.loads(expired)["signature"]))
    monkeypatch.delenv(KEYS_VARIABLE)
    assert not trusts(ProgramTrust("trusted"), SIGNATURE)


def test_programs_that_the_client_has_registered_are_trusted() -> None:
    assert trusts(ProgramTrust("trusted", lambda digest: digest == PROGRAM.digest))
    assert not trusts(ProgramTrust("trusted", lambda digest: digest != PROGRAM.digest))


def test_built_in_programs_are_trusted() -> None:
    for program in BUILTIN_PROGRAMS.values():
        assert trusts(ProgramTrust("trusted"), data=program.to_bytes())


def test_all_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ProgramTrust().runs_programs
    assert trusts(ProgramTrust())
    monkeypatch.setenv(VARIABLE, "off")
    assert not ProgramTrust().runs_programs
    assert trusts(ProgramTrust("all"))


@pytest.mark.parametrize(("mode", "variable", "where"), [("some", "", "programs"), (None, "yes", VARIABLE)])
def test_an_unknown_mode(mode: Any, variable: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    with pytest.raises(InvalidArgument, match=f"{where} is .*; write all, trusted or off"):
        ProgramTrust(mode)


def test_a_folder_without_keys(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (keys / "two.pub").write_text("nothing")
    with pytest.raises(InvalidArgument, match=r"two\.pub"):
        ProgramTrust("trusted")
    monkeypatch.setenv(KEYS_VARIABLE, str(keys / "missing"))
    with pytest.raises(InvalidArgument, match="missing"):
        ProgramTrust("trusted")
