"""What a request's processor comes to, once it was looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport_server.principals import TrustDomain


@dataclass(frozen=True)
class Source:
    """Where a processor that a request may use comes from: it is installed here, or a payload that a client shipped.

    Attributes:
        key: the name of what is installed, or the payload's digest.
        installed: the processor; None if it was shipped.
        payload: the payload; None if the processor is installed. Nobody has unpickled it yet.
        domain: whose code it is; None for what is installed.
    """

    key: str
    installed: Any = None
    payload: Payload | None = None
    domain: TrustDomain | None = None

    @property
    def display_name(self) -> str:
        """What people are told of it."""
        return self.key if self.payload is None else self.payload.display_name
