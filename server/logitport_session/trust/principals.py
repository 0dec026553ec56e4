"""Callers and their scopes, and the trust domains of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from logitport.errors import AccessDenied

# Scopes: call processors, ship code, manage the processors of other principals, and have one's code run on the GPU.
APPLY, REGISTER, ADMIN, CUDA = SCOPES = ("apply", "register", "admin", "cuda")


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Attributes:
        name: unique; "" if authentication is off.
        scopes: its part of `SCOPES`.
    """

    name: str
    scopes: frozenset[str]

    @property
    def display_name(self) -> str:
        """The name in error messages and logs."""
        return repr(self.name) if self.name else "the caller"

    def may(self, scope: str) -> bool:
        """Whether the principal has the scope."""
        return scope in self.scopes

    def check(self, scope: str, what: str) -> None:
        """Raise AccessDenied if the principal lacks the scope that the action `what` needs."""
        if scope not in self.scopes:
            raise AccessDenied(
                f"{self.display_name} may not {what}, which needs the scope {scope!r}; ask the server's operator for it"
            )


ANONYMOUS = Principal("", frozenset(SCOPES))


class Party(NamedTuple):
    """The party that work, memory and failures are charged to.

    Attributes:
        principal: name of the calling principal.
        tenant: the tenant that the principal names in the request, or "".
    """

    principal: str
    tenant: str = ""


class TrustDomain(NamedTuple):
    """A trust domain: code can read and disturb only the data and code of its own domain.

    Attributes:
        owner: name of the principal that registered the processor, or that sent it with a request.
        party: the party that calls the processor.
        digest: for a processor that is sent with a request, its digest: users of one engine may have no tenant, and
            must not share a worker. "" for a registered processor.
    """

    owner: str
    party: Party
    digest: str = ""


def log_fields(domain: TrustDomain | None) -> dict[str, str]:
    """The fields of log records about a processor in this domain."""
    if domain is None:
        return {}
    return {"owner": domain.owner, "principal": domain.party.principal, "tenant": domain.party.tenant}
