"""The public keys that the operator trusts for signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, PayloadError
from logitport.payload.signing import check_not_expired, read_public_keys, verify
from logitport_server.config import StartupError
from logitport_server.reloaded import Reloaded

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from logitport.payload import Payload


class TrustedKeys:
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

    def refresh(self, *, force: bool = False) -> None:
        """Read the folder again if a file has changed, or with `force`. If that fails, the keys stay in use."""
        self._files.refresh(force=force)

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
                "`logitport payload sign` or Client.register(signing_key=...)",
                code=PayloadError.NOT_ALLOWED,
            )
        key = self._files.value.get(shipped.signature.key)
        if key is None:
            raise PayloadError(
                f"the payload is signed with key {shipped.signature.key}, which this server does not trust; its "
                "operator can add the public key to the folder of --trusted-keys",
                code=PayloadError.NOT_ALLOWED,
            )
        return key

    def _read(self) -> dict[str, Ed25519PublicKey]:
        try:
            return read_public_keys(self._folder)
        except InvalidArgument as error:
            raise StartupError(f"--trusted-keys: {error}") from error
