"""Checks that a stored value was written by a server of the fleet, and is not damaged."""

from __future__ import annotations

import hashlib
import hmac
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_MIN_KEY_BYTES = 32


class InvalidSeal(ValueError):
    """A value is damaged, or was not written with the key. The message says which."""


class Seal:
    """Puts a line before each value: its HMAC-SHA-256 with the fleet's key, or its SHA-256 if there is no key.

    The digest covers the value and the key under which it is stored, so a value cannot be moved to another key.

    Args:
        secret: the fleet's key; None for a store that only the server's user can write.
        older: further keys that may have sealed values.
    """

    def __init__(self, secret: bytes | None = None, *older: bytes) -> None:
        self._secrets = (secret, *older)
        self._scheme = b"sha256" if secret is None else b"hmac-sha256"

    @classmethod
    def from_file(cls, path: Path) -> Seal:
        """Read the fleet's keys: one in each line. The first one seals. White space around them is ignored.

        A file that is not ASCII text has one key, all of it.

        Raises:
            OSError: the file cannot be read.
            ValueError: a key is too short, or all users can write the file.
        """
        if path.stat().st_mode & stat.S_IWOTH:
            raise ValueError(f"all users can write it; run: chmod o-w {path}")
        content = path.read_bytes().strip()
        lines = content.splitlines() if content.isascii() else [content]
        secrets = [line.strip() for line in lines if line.strip()] or [b""]
        for number, secret in enumerate(secrets, 1):
            if len(secret) < _MIN_KEY_BYTES:
                raise ValueError(
                    f"{'the key' if len(secrets) == 1 else f'key {number}'} has {len(secret)} bytes, and needs "
                    f"{_MIN_KEY_BYTES}; write one with `openssl rand -hex 32`"
                )
        return cls(*secrets)

    @property
    def has_older_keys(self) -> bool:
        """Whether values may have been sealed with another key than the present one."""
        return len(self._secrets) > 1

    def add(self, key: str, data: bytes) -> bytes:
        """Return the data with its seal."""
        return b"%s %s\n%s" % (self._scheme, _digest(self._secrets[0], key, data), data)

    def remove(self, key: str, sealed: bytes) -> bytes:
        """Check the seal, and return the data. Raises InvalidSeal."""
        head, _, data = sealed.partition(b"\n")
        scheme, _, digest = head.partition(b" ")
        if scheme != self._scheme:
            if self._secrets[0] is None and scheme == b"hmac-sha256":
                raise InvalidSeal("it was written with a key; start the server with the fleet's --store-key")
            if self._secrets[0] is not None and scheme == b"sha256":
                raise InvalidSeal("it was written without a key, before --store-key was set; register it again")
            raise InvalidSeal("it is damaged, or was not written by logitport")
        if not any(hmac.compare_digest(digest, _digest(secret, key, data)) for secret in self._secrets):
            raise InvalidSeal(
                "its checksum does not match: it is damaged"
                if self._secrets[0] is None
                else "its HMAC does not match --store-key: it is damaged, or was not written by this fleet"
            )
        return data


def _digest(secret: bytes | None, key: str, data: bytes) -> bytes:
    stored_at = key.encode()
    covered = b"%d:%s%s" % (len(stored_at), stored_at, data)
    if secret is None:
        return hashlib.sha256(covered).hexdigest().encode()
    return hmac.digest(secret, covered, "sha256").hex().encode()
