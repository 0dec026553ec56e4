"""Servers that take signed payloads alone."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from logitport import CustomLogitProcessor, SignatureRefused, payload
from logitport_proto import common_pb2
from logitport_server.config import StartupError
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.registry import Registry
from logitport_server.registry.trusted_keys import TrustedKeys

if TYPE_CHECKING:
    from pathlib import Path

KEY, STRANGE = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


class One(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


ONE = One.to_str()
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
def registry(keys: TrustedKeys) -> Registry:
    policy = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20, trusted_keys=keys)
    return Registry(policy, max_registered=8, max_owned=8)


def expired() -> str:
    return payload.sign(ONE, KEY, name="team/one", seconds=-1)


def tampered() -> str:
    return json.dumps({**json.loads(SIGNED), "python": ""})


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (ONE, "is not signed, .* `logitport sign` or Client.register"),
        (payload.sign(ONE, STRANGE, name="team/one"), "which this server does not trust"),
        (expired(), r"expired at 20\d\d-.* UTC; sign it again"),
        (tampered(), "does not fit"),
        (payload.sign(ONE, KEY), "signed for no name, and is to be registered as 'team/one'"),
        (payload.sign(ONE, KEY, name="team/two"), "signed for 'team/two', and is to be registered as 'team/one'"),
    ],
)
def test_what_is_refused(registry: Registry, refused: str, told: str) -> None:
    with pytest.raises(SignatureRefused, match=told):
        registry.register(refused, "team/one", replace=False)
    if "to be registered" not in told:
        with pytest.raises(SignatureRefused, match=told):
            registry.resolve(common_pb2.Processor(payload=refused))


def test_what_is_accepted(registry: Registry) -> None:
    digest = registry.register(SIGNED, "team/one", replace=False).digest
    for processor in ({"payload": SIGNED}, {"name": "team/one"}, {"digest": digest}):
        assert registry.resolve(common_pb2.Processor(**processor)).key == digest
    assert registry.register(payload.sign(ONE, KEY), "", replace=False).digest == digest


def test_what_expires_is_not_used_any_more(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register(SIGNED, "team/one", replace=False)
    later = time.time() + 40 * 86400
    monkeypatch.setattr(time, "time", lambda: later)
    named = common_pb2.Processor(name="team/one")
    with pytest.raises(SignatureRefused, match="expired"):
        registry.resolve(named)
    registry.register(payload.sign(ONE, KEY, name="team/one"), "team/one", replace=False)
    assert registry.resolve(named)


def test_a_key_that_goes_takes_what_it_signed_along(registry: Registry, keys: TrustedKeys, tmp_path: Path) -> None:
    registry.register(SIGNED, "team/one", replace=False)
    trust(tmp_path, STRANGE)
    assert registry.resolve(common_pb2.Processor(name="team/one"))
    keys.refresh()
    with pytest.raises(SignatureRefused, match="does not trust"):
        registry.resolve(common_pb2.Processor(name="team/one"))


def test_a_folder_that_goes_wrong_changes_nothing(
    keys: TrustedKeys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "new.pub").write_text("nonsense")
    keys.refresh()
    keys.check(payload.parse(SIGNED))
    assert "trusted keys are as they were" in caplog.text


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="has no key"):
        TrustedKeys(tmp_path)
    with pytest.raises(StartupError, match="No such file"):
        TrustedKeys(tmp_path / "missing")
    (tmp_path / "bad.pub").write_text("nonsense")
    with pytest.raises(StartupError, match=r"bad\.pub"):
        TrustedKeys(tmp_path)


def test_without_keys_nobody_looks() -> None:
    policy = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20)
    for taken in (ONE, SIGNED, expired(), tampered()):
        assert policy.accept(taken, "team/x").digest
