"""Checks of signatures by known public keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import PayloadError
from logitport.payload.signing import check_not_expired, key_id, verify

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from logitport.payload import Payload


class KnownKeys:
    """Public keys by their ids. `use` replaces them.

    Args:
        keys: the keys.
    """

    def __init__(self, keys: Mapping[str, Ed25519PublicKey]) -> None:
        self._keys = keys

    @property
    def raw(self) -> list[bytes]:
        """The keys, 32 bytes each."""
        return [key.public_bytes_raw() for key in self._keys.values()]

    def use(self, raw: Iterable[bytes]) -> None:
        """Use these keys from now on."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        keys = map(Ed25519PublicKey.from_public_bytes, raw)
        self._keys = {key_id(key): key for key in keys}

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
        key = self._keys.get(shipped.signature.key)
        if key is None:
            raise PayloadError(
                f"the payload is signed with key {shipped.signature.key}, which this server does not trust; its "
                "operator can add the public key to the folder of --trusted-keys",
                code=PayloadError.NOT_ALLOWED,
            )
        return key
