"""Regions that may be handed to a worker: those in which there is nobody else's row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_server.dialects import Dialect
    from logitport_server.principals import TrustDomain
    from logitport_server.session.active_request import ActiveRequest
    from logitport_server.session.grouping import Row
    from logitport_server.shared_memory.regions import Region

# A batch in which one trust domain is alone by chance would have its regions retired at once again.
_STEPS_ALONE = 8


@dataclass(eq=False)
class _Use:
    """Who has had rows in a region.

    Attributes:
        domains: the trust domain of every request since the region was opened; None for requests of several, or of
            none, such as those with built-ins. Two are as good as many.
        steps: steps with logits in it, with a single domain.
        borrowers: the processors that it was lent to.
    """

    domains: set[TrustDomain | None] = field(default_factory=set)
    steps: int = 0
    borrowers: WeakSet[Dialect] = field(default_factory=WeakSet)

    def share(self, domain: TrustDomain | None) -> None:
        if len(self.domains) < 2:
            self.domains.add(domain)

    @property
    def exclusive(self) -> bool:
        return len(self.domains) == 1 and None not in self.domains


class Lending:
    """What of one session's regions was lent: where a worker keeps what it has, nobody else's row may come."""

    def __init__(self) -> None:
        self._uses: WeakKeyDictionary[Region, _Use] = WeakKeyDictionary()

    def opened(self, region: Region, requests: Iterable[ActiveRequest]) -> None:
        """A region is there, for these requests."""
        use = self._uses[region] = _Use()
        for request in requests:
            use.share(_domain_of(request))

    def admitted(self, request: ActiveRequest) -> bool:
        """A request has joined; whether the regions must be retired, for one of them was lent, and not for this one."""
        domain, retire = _domain_of(request), False
        for use in self._uses.values():
            use.share(domain)
            retire = retire or (bool(use.borrowers) and not use.exclusive)
        if retire:
            for use in self._uses.values():
                for dialect in use.borrowers:
                    dialect.borrow(None)
            self._uses.clear()
        return retire

    def step(self, region: Region, rows: Iterable[Row]) -> None:
        """The logits of a step lie in this region: lend it, if that may be."""
        use = self._uses.get(region)
        if use is None or not use.exclusive:
            return
        use.steps += 1
        if use.steps > _STEPS_ALONE:
            for dialect in {entry.dialect for row in rows for entry in row.request.chain}:
                dialect.borrow(region)
                use.borrowers.add(dialect)


def _domain_of(request: ActiveRequest) -> TrustDomain | None:
    domains = {entry.dialect.domain for entry in request.chain}
    return domains.pop() if len(domains) == 1 else None
