"""The result of looking up a request's processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.payload import Payload, Signature
    from logitport.payload.source_lines import SourcePart
    from logitport_programs.verifier import Verified
    from logitport_session.trust.principals import TrustDomain


@dataclass(frozen=True)
class Source:
    """A processor that a request may use: an installed one, or a shipped payload.

    Attributes:
        key: name of the installed processor, or digest of the payload.
        installed: the processor; None for a payload.
        payload: the payload, not unpickled; None for an installed processor.
        domain: trust domain of the code; None for an installed processor, and for a program, which is no code.
        program: the program, if the processor is one. It runs in the process of its session.
    """

    key: str
    installed: Any = None
    payload: Payload | None = None
    domain: TrustDomain | None = None
    program: Verified | None = None

    @property
    def signature(self) -> Signature | None:
        """The signature of the payload, if it has one."""
        return None if self.payload is None else self.payload.signature

    @property
    def shown_source(self) -> Sequence[SourcePart]:
        """The source lines for errors. These go to the calling principal, who sees only source lines of its own."""
        own = self.domain is not None and self.domain.owner == self.domain.party.principal
        return self.payload.source if own and self.payload is not None else ()

    @property
    def display_name(self) -> str:
        """The name for error messages and logs."""
        return self.key if self.payload is None else self.payload.display_name


def names_no_processor() -> InvalidArgument:
    """The error of a request's processor that has none of the ways to name one."""
    return InvalidArgument("a ProcessorCall names no processor: set one of builtin, name, digest, payload")
