"""`logitport keygen`."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport.payload.signing import key_id
from logitport_server.config import StartupError


class Keygen(BaseModel):
    """Create a key pair for signing payloads: PATH is the private key, PATH.pub the public key for --trusted-keys."""

    path: CliPositionalArg[Path] = Field(description="file of the private key; it must not exist yet")

    def cli_cmd(self) -> None:
        """Create and write the keys."""
        key = Ed25519PrivateKey.generate()
        public = self.path.with_name(self.path.name + ".pub")
        _write(self.path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
        _write(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
        print(f"{self.path} and {public}: key {key_id(key.public_key())}")  # noqa: T201


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}; choose another path") from error
