"""`logitport payload keygen` and `logitport payload sign`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pydantic import BaseModel, Field

from logitport import payload
from logitport.payload.signing import DEFAULT_SECONDS, key_id, read_private_key
from logitport_server.cli.payload_file import read_payload
from logitport_server.config import StartupError
from logitport_server.config.option import Argument, Metavar
from logitport_server.config.units import Period
from logitport_server.config.values import File


class Keygen(BaseModel):
    """Create a key pair for signing payloads: PATH is the private key, PATH.pub the public key for --trusted-keys."""

    path: Argument[Path] = Field(description="file of the private key; it must not exist yet")

    def run(self) -> None:
        key = Ed25519PrivateKey.generate()
        public = self.path.with_name(self.path.name + ".pub")
        _write(self.path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
        _write(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
        print(f"{self.path} and {public}: key {key_id(key.public_key())}")  # noqa: T201


class Sign(BaseModel):
    """Sign a payload and print it. Servers with --trusted-keys require a signature."""

    payload: Argument[Annotated[str, Metavar("FILE")]] = Field(
        description="file of a payload, the result of CustomLogitProcessor.to_str(), or of a program; - for stdin"
    )
    key: File = Field(description="file of the private key, from `logitport payload keygen`")
    name: str = Field(
        "",
        description="name that the payload may be registered under; without it, no name is allowed",
    )
    expires: Period = Field(
        timedelta(seconds=DEFAULT_SECONDS),
        gt=timedelta(0),
        description="how long the signature is valid, for example 30d",
    )

    def run(self) -> None:
        seconds = int(self.expires.total_seconds())
        print(payload.sign(read_payload(self.payload), read_private_key(self.key), name=self.name, seconds=seconds))  # noqa: T201


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}; choose another path") from error
