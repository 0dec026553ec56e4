"""Signs payloads and verifies signatures: Ed25519 (RFC 8032) over `signed_bytes`."""

from __future__ import annotations

import hashlib
import os
import struct
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Union

import orjson

from logitport.errors import InvalidArgument, PayloadError
from logitport.payload.envelope import parse
from logitport.payload.signature import Signature
from logitport.payload.source_lines import digest_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from logitport.payload.envelope import Payload

PathLike = Union[str, "os.PathLike[str]"]

DEFAULT_SECONDS = 30 * 24 * 3600

# Domain separation: no other message that the key signs has one of these prefixes, and no signature of a program fits a
# pickle.
_CONTEXT = b"logitport payload signature v1\0"
_PROGRAM_CONTEXT = b"logitport program signature v1\0"
_LENGTH = struct.Struct(">I")


def sign(serialized: str, key: Ed25519PrivateKey, *, name: str = "", seconds: int = DEFAULT_SECONDS) -> str:
    """Add a signature to a payload; an existing signature is replaced.

    Args:
        serialized: the payload.
        key: see `read_private_key`.
        name: the name under which it may be registered; "" if it may not be registered under a name.
        seconds: how long the signature is valid.

    Raises:
        PayloadError: `serialized` is not a payload.
    """
    shipped = parse(serialized)
    expires = int(time.time()) + seconds
    value = key.sign(signed_bytes(shipped, name, expires))
    signature = Signature(key_id(key.public_key()), name, expires, value)
    return orjson.dumps({**orjson.loads(serialized), "signature": signature.to_json()}).decode()


def verify(shipped: Payload, key: Ed25519PublicKey) -> None:
    """Raise PayloadError unless this key made the payload's signature, for this payload."""
    from cryptography.exceptions import InvalidSignature

    signature = shipped.signature
    assert signature is not None  # noqa: S101 - callers have read the key id from it
    try:
        key.verify(signature.value, signed_bytes(shipped, signature.name, signature.expires))
    except InvalidSignature:
        raise PayloadError(
            "the signature does not fit: the payload, its name, Python version or expiry was changed after it was "
            "signed; sign it again",
            code=PayloadError.NOT_ALLOWED,
        ) from None


def check_not_expired(signature: Signature) -> None:
    """Raise PayloadError if the signature has expired."""
    if signature.expires <= time.time():
        ended = datetime.fromtimestamp(signature.expires, timezone.utc)
        raise PayloadError(
            f"the payload's signature expired at {ended:%Y-%m-%d %H:%M:%S} UTC; sign it again",
            code=PayloadError.NOT_ALLOWED,
        )


def signed_bytes(shipped: Payload, name: str, expires: int) -> bytes:
    """Return the bytes to sign: digest, name, Python version and expiry, and the digest of source lines if it has any.

    Each field is preceded by its length, so that no bytes can move from one field to the next.
    """
    fields = [shipped.digest, name, shipped.python, str(expires)]
    if shipped.source:
        fields.append(digest_of(shipped.source))
    encoded = [field.encode() for field in fields]
    context = _PROGRAM_CONTEXT if shipped.is_program else _CONTEXT
    return context + b"".join(_LENGTH.pack(len(field)) + field for field in encoded)


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id of a key in signatures: SHA-256 of its 32 bytes, as hexadecimal digits."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def read_private_key(path: PathLike) -> Ed25519PrivateKey:
    """Read a private key from a PEM file without a password. Raises InvalidArgument."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(Path(path).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgument(f"no private key can be read from {os.fspath(path)}: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidArgument(f"the key in {os.fspath(path)} is not Ed25519; make one with `logitport payload keygen`")
    return key


def read_public_keys(folder: PathLike) -> dict[str, Ed25519PublicKey]:
    """Read the public keys of a folder, one in each file *.pub, by their ids. Raises InvalidArgument."""
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.suffix == ".pub")
    except OSError as error:
        raise InvalidArgument(f"no public keys can be read from {os.fspath(folder)}: {error.strerror}") from error
    keys = [read_public_key(path) for path in files]
    return {key_id(key): key for key in keys}


def read_public_key(path: PathLike) -> Ed25519PublicKey:
    """Read a public key from a PEM file. Raises InvalidArgument."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"no public key can be read from {os.fspath(path)}: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidArgument(f"the key in {os.fspath(path)} is not Ed25519; make one with `logitport payload keygen`")
    return key
