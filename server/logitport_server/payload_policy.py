"""What must be true of a payload before anybody looks into it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport import payload
from logitport.errors import LimitExceeded, PayloadNotAllowed

if TYPE_CHECKING:
    from logitport.payload import Payload


class PayloadPolicy:
    """The operator's.

    Args:
        allow_shipped: whether any payload is accepted.
        max_bytes: the longest string, in bytes.
    """

    def __init__(self, *, allow_shipped: bool, max_bytes: int) -> None:
        self._allow_shipped = allow_shipped
        self._max_bytes = max_bytes

    def accept(self, serialized: str) -> Payload:
        """Read a payload, without unpickling it.

        Raises:
            PayloadNotAllowed, LimitExceeded, MalformedPayload: it is refused, each before more of it is read.
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
        return payload.parse(serialized)
