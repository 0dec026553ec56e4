"""What must be true of a payload before anybody looks into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport import payload
from logitport.errors import LimitExceeded, PayloadNotAllowed

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport_server.registry.trusted_keys import TrustedKeys


class PayloadPolicy:
    """The operator's.

    Args:
        allow_shipped: whether any payload is accepted.
        max_bytes: the longest string, in characters.
        trusted_keys: of which one must have signed each payload; None to take unsigned ones, too.
    """

    def __init__(self, *, allow_shipped: bool, max_bytes: int, trusted_keys: TrustedKeys | None = None) -> None:
        self._allow_shipped = allow_shipped
        self._max_bytes = max_bytes
        self._trusted_keys = trusted_keys

    def accept(self, serialized: str, name: str = "") -> Payload:
        """Read a payload, without unpickling it.

        Args:
            serialized: the payload.
            name: to be bound to it, if any.

        Raises:
            PayloadNotAllowed, LimitExceeded, MalformedPayload, SignatureRefused: each before more of it is read.
        """
        if not self._allow_shipped:
            raise PayloadNotAllowed(
                "this server does not accept shipped processors; its operator can allow them with "
                "--enable-custom-logit-processor"
            )
        if len(serialized) > self._max_bytes:
            raise LimitExceeded(
                f"a payload of {len(serialized)} characters is over the server's limit of {self._max_bytes}: leave out "
                "what the class carries along, such as large constants, or raise --max-payload-bytes"
            )
        shipped = payload.parse(serialized)
        if self._trusted_keys is not None:
            self._trusted_keys.check(shipped, name)
        return shipped

    def check_current(self, shipped: Payload) -> None:
        """Raises SignatureRefused if a payload that was accepted once would not be any more."""
        if self._trusted_keys is not None:
            self._trusted_keys.check_current(shipped)
