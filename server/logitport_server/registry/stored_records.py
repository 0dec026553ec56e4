"""The records of the registry, as JSON: registrations, names, and quarantined processors."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict

from logitport_session.trust.principals import Party, TrustDomain

if TYPE_CHECKING:
    from collections.abc import Iterable


class Record(BaseModel):
    """The content of one value of the store."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: ClassVar[str]

    @property
    def key(self) -> str:
        """The key in the store."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """Return the value in the store."""
        return orjson.dumps(self.model_dump())  # for 16 MiB, pydantic's takes twice as long, and holds the lock


class Registration(Record):
    """A registered payload.

    Attributes:
        serialized: the payload's string, unchanged.
        digest: the payload's digest at registration. The catalog compares it with the digest after loading.
        owner: name of the principal that registered it.
        shared: whether all principals may use it.
        registered_at: in seconds since the Unix epoch.
    """

    kind = "processor"
    serialized: str
    digest: str
    owner: str
    shared: bool
    registered_at: float

    @property
    def key(self) -> str:
        return registration_key(self.digest, self.owner)


class Binding(Record):
    """The binding of a name to a registration."""

    kind = "name"
    name: str
    digest: str
    owner: str

    @property
    def key(self) -> str:
        return binding_key(self.name)


class Quarantined(Record):
    """A processor that is quarantined in one trust domain.

    Attributes:
        digest: digest of the processor.
        domain: owner, calling principal, tenant and digest of the trust domain; None without trust domains.
        reason: why it is quarantined.
    """

    kind = "quarantine"
    digest: str
    domain: tuple[str, str, str, str] | None
    reason: str

    @classmethod
    def of(cls, domain: TrustDomain | None, digest: str, reason: str) -> Quarantined:
        """Make the record of a quarantine."""
        names = None if domain is None else (domain.owner, *domain.party, domain.digest)
        return cls(digest=digest, domain=names, reason=reason)

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.digest}/{hashlib.sha256(json.dumps(self.domain).encode()).hexdigest()}"

    @property
    def trust_domain(self) -> TrustDomain | None:
        """The trust domain."""
        if self.domain is None:
            return None
        owner, principal, tenant, digest = self.domain
        return TrustDomain(owner, Party(principal, tenant), digest)


_KINDS: Iterable[type[Record]] = (Registration, Binding, Quarantined)
_BY_KIND = {record.kind: record for record in _KINDS}


def registration_key(digest: str, owner: str) -> str:
    """Return the key of a registration."""
    return f"{Registration.kind}/{digest}/{owner}"


def binding_key(name: str) -> str:
    """Return the key of a name."""
    return f"{Binding.kind}/{name}"


def decode(key: str, data: bytes) -> Record:
    """Read a record. Raises ValueError if the data is no record of this key."""
    kind = _BY_KIND.get(key.partition("/")[0])
    if kind is None:
        raise ValueError("this version has no such kind of entry")
    record = kind.model_validate_json(data)
    if record.key != key:
        raise ValueError("its content does not match its key")
    return record
