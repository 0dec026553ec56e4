"""Signed payloads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from logitport import InvalidArgument, PayloadError, payload
from logitport.payload.signature import Signature
from logitport.payload.signing import key_id, read_private_key, read_public_key, signed_bytes, verify
from logitport.shipping.calls import register_request
from tests.toy_processors import AddOne, Unchanged

if TYPE_CHECKING:
    from pathlib import Path

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.generate()


ONE = Unchanged.to_str()
SIGNED = payload.sign(ONE, KEY, name="team/one")


def changed(**fields: Any) -> str:
    content = json.loads(SIGNED)
    for name, value in fields.items():
        place = content if name in content else content["signature"]
        place[name] = value
    return json.dumps(content)


def test_the_fields_of_a_signature() -> None:
    signature = payload.parse(SIGNED).signature
    assert signature is not None
    raw = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert signature.key == key_id(KEY.public_key()) == hashlib.sha256(raw).hexdigest()
    assert signature.name == "team/one"
    assert time.time() + 29 * 86400 < signature.expires < time.time() + 31 * 86400
    verify(payload.parse(SIGNED), KEY.public_key())
    with pytest.raises(PayloadError):
        verify(payload.parse(SIGNED), OTHER.public_key())
    assert Signature.from_json(signature.to_json()) == signature
    assert payload.parse(ONE).signature is None
    again = payload.parse(payload.sign(SIGNED, OTHER, seconds=60)).signature
    assert again is not None
    assert (again.key, again.name) == (key_id(OTHER.public_key()), ""), "signing again replaces the signature"


def test_a_signature_of_a_program_is_none_of_a_pickle_of_the_same_bytes() -> None:
    signed = payload.parse(payload.sign(payload.seal_program(b"\x08\x01", "MinP"), KEY, name="team/one"))
    verify(signed, KEY.public_key())
    with pytest.raises(PayloadError):
        verify(dataclasses.replace(signed, is_program=False), KEY.public_key())


def test_signatures_do_not_change_from_release_to_release() -> None:
    """Ed25519 is deterministic: the same input gives the stored signature."""
    shipped = payload.Payload(b"", "ab" * 32, "3.11")
    assert signed_bytes(shipped, "team/one", 1700000000) == (
        b"logitport payload signature v1\0\0\0\0\x40"
        + b"ab" * 32
        + b"\0\0\0\x08team/one\0\0\0\x043.11\0\0\0\x0a1700000000"
    )


@given(
    st.tuples(st.text(), st.text(), st.integers(0, 1 << 40)), st.tuples(st.text(), st.text(), st.integers(0, 1 << 40))
)
def test_different_fields_give_different_signed_bytes(one: tuple[str, str, int], two: tuple[str, str, int]) -> None:
    encoded = [
        signed_bytes(payload.Payload(b"", "0" * 64, python), name, expires) for name, python, expires in (one, two)
    ]
    assert (encoded[0] == encoded[1]) == (one == two)


@pytest.mark.parametrize(
    "tampered",
    [
        changed(callable=json.loads(AddOne.to_str())["callable"]),
        changed(python="3.12"),
        changed(name="team/two"),
        changed(name=""),
        changed(expires=1 << 37),
        changed(value="00" * 64),
    ],
)
def test_a_changed_payload_does_not_verify(tampered: str) -> None:
    with pytest.raises(PayloadError, match="was changed after it was signed"):
        verify(payload.parse(tampered), KEY.public_key())


@pytest.mark.parametrize(
    "signature",
    [
        *(None, "", [], {}, 1),
        {**json.loads(SIGNED)["signature"], "more": 1},
        *(
            {**json.loads(SIGNED)["signature"], key: value}
            for key, value in [
                *(("expires", "1"), ("expires", 1.0), ("expires", True), ("expires", -1), ("expires", 1 << 60)),
                *(("value", ""), ("value", "zz" * 64), ("value", "00" * 63), ("value", 1)),
                *(("key", ""), ("key", "0" * 63), ("key", "0" * 64 + "\n"), ("key", "A" * 64), ("key", None)),
                *(("name", "x" * 129), ("name", 1), ("name", None)),
            ]
        ),
    ],
)
def test_malformed_signatures_are_refused(signature: Any) -> None:
    with pytest.raises(PayloadError, match='"signature"'):
        payload.parse(json.dumps({**json.loads(ONE), "signature": signature}))


def pem(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def test_keys_are_files(tmp_path: Path) -> None:
    private, public = tmp_path / "key", tmp_path / "key.pub"
    private.write_bytes(pem(KEY))
    public.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert key_id(read_private_key(private).public_key()) == key_id(read_public_key(public)) == key_id(KEY.public_key())
    shipped = payload.parse(register_request(Unchanged, "team/one", replace=False, signing_key=str(private))[0].payload)
    verify(shipped, KEY.public_key())
    assert shipped.signature is not None
    assert shipped.signature.name == "team/one"


@pytest.mark.parametrize("read", [read_private_key, read_public_key])
def test_files_that_are_not_keys(tmp_path: Path, read: Any) -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    public = curve.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for content, message in ((b"nonsense", "no .* key can be read"), (pem(curve) + public, "is not Ed25519")):
        file = tmp_path / "key"
        file.write_bytes(content if read is read_private_key or message != "is not Ed25519" else public)
        with pytest.raises(InvalidArgument, match=message):
            read(file)
    with pytest.raises(InvalidArgument, match="No such file"):
        read(tmp_path / "missing")


def test_only_signing_needs_cryptography() -> None:
    code = "import sys; sys.modules['cryptography'] = None; from logitport import Client, payload; print(payload.parse)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=200)
