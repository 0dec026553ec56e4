"""What a request's processor comes to, once it was looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport.processors import EditProcessor
    from logitport_server.principals import Domain


@dataclass(frozen=True)
class Source:
    """Where a processor that a request may use comes from: a class of ours, or a payload that a client shipped.

    Attributes:
        key: a built-in's name, or the payload's digest.
        builtin: the class; None if the processor was shipped.
        payload: the payload; None if the processor is a built-in. Nobody has unpickled it yet.
        domain: whose code it is; None for a built-in.
    """

    key: str
    builtin: type[EditProcessor] | None = None
    payload: Payload | None = None
    domain: Domain | None = None
