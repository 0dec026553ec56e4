"""The public keys that the operator trusts for signatures."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, PayloadError
from logitport.payload.signing import check_not_expired, read_public_keys, verify
from logitport_server.config import StartupError

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from logitport.payload import Payload

logger = logging.getLogger(__name__)


class TrustedKeys:
    """The public keys in a folder, one in each file *.pub.

    Raises:
        StartupError: the folder or a file in it cannot be read, or it has no key.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = self._folder_version()
        self._keys = self._read()
        if not self._keys:
            raise StartupError(f"--trusted-keys {folder} has no key: copy a *.pub file of `logitport keygen` there")

    def refresh(self, *, if_changed: bool = False) -> None:
        """Reload the folder. If that fails, log the error and keep the keys.

        Args:
            if_changed: do nothing if no file was added, removed or replaced since the last time.
        """
        before, self._version = self._version, self._folder_version()
        if if_changed and before == self._version:
            return
        try:
            keys = self._read()
        except StartupError as error:
            logger.error(
                "the trusted keys were not reloaded: %s",
                error,
                extra={"event": "reload_failed", "what": "trusted_keys"},
            )
            return
        if keys.keys() != self._keys.keys():
            self._keys = keys
            logger.info(
                "reloaded %d trusted keys from %s",
                len(keys),
                self._folder,
                extra={"event": "reloaded", "what": "trusted_keys"},
            )

    def check(self, shipped: Payload, name: str = "") -> None:
        """Raise PayloadError unless a trusted key has signed the payload, and the name if one is given."""
        key = self._current_key(shipped)
        verify(shipped, key)
        self.check_current(shipped, name)

    def check_current(self, shipped: Payload, name: str = "") -> None:
        """Check a payload again that passed `check`: since then a key may be removed, or a signature expire.

        With a name, also whether it was signed for that: a name from the store was not checked before.
        """
        self._current_key(shipped)
        assert shipped.signature is not None  # noqa: S101 - `_current_key` requires it
        check_not_expired(shipped.signature)
        if name and shipped.signature.name != name:
            signed_for = repr(shipped.signature.name) if shipped.signature.name else "no name"
            raise PayloadError(
                f"the payload was signed for {signed_for}, not for {name!r}; sign it for that name to register it",
                code=PayloadError.NOT_ALLOWED,
            )

    def _current_key(self, shipped: Payload) -> Ed25519PublicKey:
        if shipped.signature is None:
            raise PayloadError(
                "the payload is not signed, and this server accepts only signed payloads: sign it with "
                "`logitport sign` or Client.register(signing_key=...)",
                code=PayloadError.NOT_ALLOWED,
            )
        key = self._keys.get(shipped.signature.key)
        if key is None:
            raise PayloadError(
                f"the payload is signed with key {shipped.signature.key}, which this server does not trust; its "
                "operator can add the public key to the folder of --trusted-keys",
                code=PayloadError.NOT_ALLOWED,
            )
        return key

    def _folder_version(self) -> list[tuple[str, int, int, int]] | None:
        """Return a value that differs after each change of the files; None if the folder cannot be read."""
        try:
            files = [(path.name, path.stat()) for path in sorted(self._folder.glob("*.pub"))]
        except OSError:
            return None
        return [(name, status.st_ino, status.st_mtime_ns, status.st_size) for name, status in files]

    def _read(self) -> dict[str, Ed25519PublicKey]:
        try:
            return read_public_keys(self._folder)
        except InvalidArgument as error:
            raise StartupError(f"--trusted-keys: {error}") from error
