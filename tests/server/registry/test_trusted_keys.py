"""Servers that accept only signed payloads."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from logitport import PayloadError, payload
from logitport_proto import common_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.stored_records import Binding
from logitport_server.registry.stores.base import Write
from logitport_server.registry.stores.memory import MemoryStore
from logitport_server.registry.stores.seal import Seal
from logitport_server.registry.trusted_keys import TrustedKeys
from logitport_session.trust.principals import ANONYMOUS
from tests.toy_processors import Unchanged

if TYPE_CHECKING:
    from pathlib import Path

KEY, OTHER_KEY = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


ONE = Unchanged.to_str()
SIGNED = payload.sign(ONE, KEY, name="team/one")


def trust(folder: Path, key: Ed25519PrivateKey, file: str = "team.pub") -> None:
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / file).write_bytes(pem)


@pytest.fixture
def keys(tmp_path: Path) -> TrustedKeys:
    trust(tmp_path, KEY)
    (tmp_path / "README").write_text("no key")
    return TrustedKeys(tmp_path)


@pytest.fixture
def registry(keys: TrustedKeys) -> LocalRegistry:
    policy = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20, trusted_keys=keys)
    return LocalRegistry(policy, max_registered=8, max_owned=8)


def expired() -> str:
    return payload.sign(ONE, KEY, name="team/one", seconds=-1)


def tampered() -> str:
    return json.dumps({**json.loads(SIGNED), "python": ""})


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (ONE, "is not signed, .* `logitport payload sign` or Client.register"),
        (payload.sign(ONE, OTHER_KEY, name="team/one"), "which this server does not trust"),
        (expired(), r"expired at 20\d\d-.* UTC; sign it again"),
        (tampered(), "does not fit"),
        (payload.sign(ONE, KEY), "signed for no name, not for 'team/one'"),
        (payload.sign(ONE, KEY, name="team/two"), "signed for 'team/two', not for 'team/one'"),
    ],
)
def test_refused_payloads(registry: LocalRegistry, refused: str, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        registry.register(refused, "team/one", replace=False)
    if "signed for" not in message:
        with pytest.raises(PayloadError, match=message):
            registry.resolve(common_pb2.Processor(payload=refused))


def test_accepted_payloads(registry: LocalRegistry) -> None:
    digest = registry.register(SIGNED, "team/one", replace=False).digest
    for processor in ({"payload": SIGNED}, {"name": "team/one"}, {"digest": digest}):
        assert registry.resolve(common_pb2.Processor(**processor)).key == digest
    assert registry.register(payload.sign(ONE, KEY), "", replace=False).digest == digest


def test_an_expired_signature_disables_the_processor(registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register(SIGNED, "team/one", replace=False)
    later = time.time() + 40 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    named = common_pb2.Processor(name="team/one")
    with pytest.raises(PayloadError, match="expired"):
        registry.resolve(named)
    registry.register(payload.sign(ONE, KEY, name="team/one"), "team/one", replace=False)
    assert registry.resolve(named)


def test_removing_a_key_disables_its_processors(registry: LocalRegistry, keys: TrustedKeys, tmp_path: Path) -> None:
    registry.register(SIGNED, "team/one", replace=False)
    trust(tmp_path, OTHER_KEY)
    assert registry.resolve(common_pb2.Processor(name="team/one"))
    keys.refresh()
    with pytest.raises(PayloadError, match="does not trust"):
        registry.resolve(common_pb2.Processor(name="team/one"))


def test_a_name_from_the_store_is_checked(keys: TrustedKeys) -> None:
    """A writer of the store with the fleet's key could otherwise give any signed payload any name."""
    policy = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20, trusted_keys=keys)
    store = MemoryStore()
    before = LocalRegistry(policy, max_registered=8, max_owned=8, store=store)
    before.register(SIGNED, "team/one", ANONYMOUS, replace=False)
    digest = payload.parse(SIGNED).digest
    for name in ("team/other", "team/one"):
        record = Binding(name=name, digest=digest, owner=ANONYMOUS.name)
        revision = store.index().revisions.get(record.key, "")
        store.commit([Write(record.key, Seal().add(record.key, record.encode()), revision)])
    registry = LocalRegistry(policy, max_registered=8, max_owned=8, store=store)
    assert registry.resolve(common_pb2.Processor(name="team/one")).key == digest
    assert registry.resolve(common_pb2.Processor(digest=digest)).key == digest
    with pytest.raises(PayloadError, match="was signed for 'team/one', not for 'team/other'"):
        registry.resolve(common_pb2.Processor(name="team/other"))


def test_invalid_folders(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="has no key"):
        TrustedKeys(tmp_path)
    with pytest.raises(StartupError, match="No such file"):
        TrustedKeys(tmp_path / "missing")
    (tmp_path / "bad.pub").write_text("nonsense")
    with pytest.raises(StartupError, match=r"bad\.pub"):
        TrustedKeys(tmp_path)


def test_without_keys_signatures_are_not_checked() -> None:
    policy = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20)
    for serialized in (ONE, SIGNED, expired(), tampered()):
        assert policy.accept(serialized, "team/x").digest
