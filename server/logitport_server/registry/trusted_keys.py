"""The public keys that the operator trusts for signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument
from logitport.payload.signing import read_public_keys
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.registry.known_keys import KnownKeys
from logitport_server.reloaded import Reloaded

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class TrustedKeys(KnownKeys):
    """The public keys in a folder, one in each file *.pub.

    Raises:
        StartupError: the folder or a file in it cannot be read, or it has no key.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = Reloaded(
            "trusted_keys",
            lambda: sorted(folder.glob("*.pub")),
            self._read,
            lambda keys: f"{len(keys)} trusted keys from {folder}",
        )
        if not self._files.value:
            raise StartupError(
                f"--trusted-keys {folder} has no key: copy a *.pub file of `logitport payload keygen` there"
            )

        super().__init__(self._files.value)

    def refresh(self, *, force: bool = False) -> bool:
        """Read the folder again if a file has changed, or with `force`. If that fails, the keys stay in use.

        Returns:
            Whether it was read.
        """
        changed = self._files.refresh(force=force)
        self._keys = self._files.value
        return changed

    def _read(self) -> dict[str, Ed25519PublicKey]:
        try:
            return read_public_keys(self._folder)
        except InvalidArgument as error:
            raise StartupError(f"--trusted-keys: {error}") from error
