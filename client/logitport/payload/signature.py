"""Signed payloads: who vouches for one, under which name, and until when.

A signature stands in the payload's JSON under "signature", which SGLang ignores: {"key", "name", "expires", "value"}.
It is Ed25519 (RFC 8032) over `signed_bytes`.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import orjson

from logitport.errors import InvalidArgument, MalformedPayload, SignatureRefused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from logitport.payload.envelope import Payload

PathLike = Union[str, "os.PathLike[str]"]

DEFAULT_SECONDS = 30 * 24 * 3600

# Nothing else that the key signs begins like this.
_CONTEXT = b"logitport payload signature v1\0"
_LENGTH = struct.Struct(">I")
_VALUE_BYTES = 64
_KEY = re.compile("[0-9a-f]{64}")
_LONGEST_NAME = 128
_LATEST = 253402300799  # the end of the year 9999, the last that datetime can tell


@dataclass(frozen=True)
class Signature:
    """What stands beside a payload.

    Attributes:
        key: SHA-256 of the public key's 32 bytes, 64 lowercase hexadecimal digits.
        name: the name under which the payload may be registered; "" for none.
        expires: when it ends to be of use, in seconds since the Unix epoch.
        value: the signature itself, 64 bytes.
    """

    key: str
    name: str
    expires: int
    value: bytes

    @classmethod
    def from_json(cls, content: object) -> Signature:
        """From the payload's JSON. Raises MalformedPayload."""
        kinds = {"key": str, "name": str, "expires": int, "value": str}
        if not isinstance(content, dict) or {key: type(value) for key, value in content.items()} != kinds:
            raise MalformedPayload('"signature" must be an object of key, name, expires and value; sign again')
        try:
            value = bytes.fromhex(content["value"])
        except ValueError as error:
            raise MalformedPayload(f'"signature": value must hold hexadecimal digits: {error}') from error
        if not _KEY.fullmatch(content["key"]) or len(value) != _VALUE_BYTES or len(content["name"]) > _LONGEST_NAME:
            raise MalformedPayload(
                '"signature": key has 64 hexadecimal digits, value 64 bytes, name 128 characters at most; sign again'
            )
        if not 0 <= content["expires"] <= _LATEST:
            raise MalformedPayload('"signature": expires is in seconds since 1970; sign again')
        return cls(content["key"], content["name"], content["expires"], value)

    def to_json(self) -> dict[str, Any]:
        """For the payload's JSON."""
        return {"key": self.key, "name": self.name, "expires": self.expires, "value": self.value.hex()}


def sign(serialized: str, key: Ed25519PrivateKey, *, name: str = "", seconds: int = DEFAULT_SECONDS) -> str:
    """The payload with a signature, in place of any that it had.

    Args:
        serialized: the payload.
        key: see `read_private_key`.
        name: the name under which it may be registered; "" if it is not to be registered under any.
        seconds: for how long the signature is of use.

    Raises:
        MalformedPayload: `serialized` is none.
    """
    from logitport.payload.envelope import parse

    shipped = parse(serialized)
    expires = int(time.time()) + seconds
    value = key.sign(signed_bytes(shipped, name, expires))
    signature = Signature(key_id(key.public_key()), name, expires, value)
    return orjson.dumps({**orjson.loads(serialized), "signature": signature.to_json()}).decode()


def verify(shipped: Payload, key: Ed25519PublicKey) -> None:
    """Raises SignatureRefused unless the payload's signature is this key's, over this payload."""
    from cryptography.exceptions import InvalidSignature

    signature = shipped.signature
    assert signature is not None  # noqa: S101 - callers look which key it names
    try:
        key.verify(signature.value, signed_bytes(shipped, signature.name, signature.expires))
    except InvalidSignature:
        raise SignatureRefused(
            "the signature does not fit: the payload, its name, Python version or expiry was changed after it was "
            "signed; sign it again"
        ) from None


def signed_bytes(shipped: Payload, name: str, expires: int) -> bytes:
    """What is signed: digest, name, Python version and expiry, each after its length: where one ends is signed, too."""
    fields = (shipped.digest, name, shipped.python, str(expires))
    octets = [field.encode() for field in fields]
    return _CONTEXT + b"".join(_LENGTH.pack(len(field)) + field for field in octets)


def key_id(key: Ed25519PublicKey) -> str:
    """What a signature calls the key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def read_private_key(path: PathLike) -> Ed25519PrivateKey:
    """From a PEM file without a password. Raises InvalidArgument."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(Path(path).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgument(f"no private key can be read from {os.fspath(path)}: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidArgument(f"the key in {os.fspath(path)} is not Ed25519; make one with `logitport keygen`")
    return key


def read_public_key(path: PathLike) -> Ed25519PublicKey:
    """From a PEM file. Raises InvalidArgument."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"no public key can be read from {os.fspath(path)}: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidArgument(f"the key in {os.fspath(path)} is not Ed25519; make one with `logitport keygen`")
    return key
