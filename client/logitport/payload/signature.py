"""The signature of a payload: the key "signature" of its JSON, which SGLang ignores.

An object with "key", "name", "expires" and "value"; `logitport.payload.signing` makes and verifies it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from logitport.errors import PayloadError

_VALUE_BYTES = 64
_KEY = re.compile("[0-9a-f]{64}")
_MAX_NAME_LENGTH = 128
_LATEST = 253402300799  # the end of the year 9999, the last that datetime can represent


@dataclass(frozen=True)
class Signature:
    """The signature of a payload.

    Attributes:
        key: SHA-256 of the public key's 32 bytes, 64 lowercase hexadecimal digits.
        name: the name under which the payload may be registered, or "".
        expires: when it becomes invalid, in seconds since the Unix epoch.
        value: the signature itself, 64 bytes.
    """

    key: str
    name: str
    expires: int
    value: bytes

    @classmethod
    def from_json(cls, content: object) -> Signature:
        """Convert from the payload's JSON. Raises PayloadError."""
        kinds = {"key": str, "name": str, "expires": int, "value": str}
        if not isinstance(content, dict) or {key: type(value) for key, value in content.items()} != kinds:
            raise PayloadError('"signature" must be an object of key, name, expires and value; sign again')
        try:
            value = bytes.fromhex(content["value"])
        except ValueError as error:
            raise PayloadError(f'"signature": value must hold hexadecimal digits: {error}') from error
        if not _KEY.fullmatch(content["key"]) or len(value) != _VALUE_BYTES or len(content["name"]) > _MAX_NAME_LENGTH:
            raise PayloadError(
                '"signature": key has 64 hexadecimal digits, value 64 bytes, name 128 characters at most; sign again'
            )
        if not 0 <= content["expires"] <= _LATEST:
            raise PayloadError('"signature": expires is in seconds since 1970; sign again')
        return cls(content["key"], content["name"], content["expires"], value)

    def to_json(self) -> dict[str, Any]:
        """Convert to an object for the payload's JSON."""
        return {"key": self.key, "name": self.name, "expires": self.expires, "value": self.value.hex()}
