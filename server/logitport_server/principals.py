"""Who calls, and whose code runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from logitport.errors import NotPermitted

# What a caller may do: call processors, ship code, manage what is others'; and have its code run on the GPU.
APPLY, REGISTER, ADMIN, CUDA = SCOPES = ("apply", "register", "admin", "cuda")


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller, as the server authenticated it.

    Attributes:
        name: unique; "" where the server asks nobody who they are.
        scopes: which of `SCOPES` it has.
    """

    name: str
    scopes: frozenset[str]

    @property
    def display_name(self) -> str:
        """What messages call it."""
        return repr(self.name) if self.name else "the caller"

    def may(self, scope: str) -> bool:
        """Whether it has the scope."""
        return scope in self.scopes

    def check(self, scope: str, what: str) -> None:
        """Raises NotPermitted if it lacks the scope that `what` takes."""
        if scope not in self.scopes:
            raise NotPermitted(
                f"{self.display_name} may not {what}, which takes the scope {scope!r}; the server's operator "
                "grants scopes"
            )


ANONYMOUS = Principal("", frozenset(SCOPES))


class TrustDomain(NamedTuple):
    """A trust domain: code of one domain may see and disturb its own, and nothing of another.

    Attributes:
        owner: name of the principal that registered the processor, or whose engine forwarded it.
        tenant: for a processor that an engine forwards with a request, on whose behalf the engine says it asks.
    """

    owner: str
    tenant: str = ""
