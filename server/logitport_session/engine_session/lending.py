"""Which shared-memory regions may be lent to a worker: those with rows of a single trust domain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logitport_session.dialects import Dialect
    from logitport_session.requests.active_request import ActiveRequest
    from logitport_session.shared_memory.regions import Region
    from logitport_session.steps.grouping import Row
    from logitport_session.trust.principals import TrustDomain

# A region is lent only after this many steps with a single trust domain. If it were lent at once, a request of another
# domain would often retire it soon after.
_MIN_EXCLUSIVE_STEPS = 8


@dataclass(eq=False)
class _Use:
    """Use of one region.

    Attributes:
        domains: the trust domains of the requests since the region was opened; None for a request with processors of
            several domains, or of no domain, such as built-ins. At most two are kept: two already
            show that the memory is shared.
        steps: number of steps with logits in the region while it was exclusive.
        borrowers: the processors that it was lent to.
    """

    domains: set[TrustDomain | None] = field(default_factory=set)
    steps: int = 0
    borrowers: WeakSet[Dialect] = field(default_factory=WeakSet)

    def add(self, domain: TrustDomain | None) -> None:
        """Record the trust domain of a request."""
        if len(self.domains) < 2:
            self.domains.add(domain)

    @property
    def exclusive(self) -> bool:
        """Whether all requests belong to one trust domain."""
        return len(self.domains) == 1 and None not in self.domains


class Lending:
    """Lends one session's regions to workers.

    A worker can keep its mapping of a region. So a region that was lent must never hold a row of another trust domain.
    """

    def __init__(self) -> None:
        self._uses: WeakKeyDictionary[Region, _Use] = WeakKeyDictionary()

    def opened(self, region: Region, requests: Iterable[ActiveRequest]) -> None:
        """Record a new region, which may have rows of all these requests."""
        use = self._uses[region] = _Use()
        for request in requests:
            use.add(_domain_of(request))

    def admitted(self, request: ActiveRequest) -> bool:
        """Record a new request. Return whether a region was lent to another trust domain: all must be retired."""
        if not self._uses:
            return False
        domain, retire = _domain_of(request), False
        for use in self._uses.values():
            use.add(domain)
            retire = retire or (bool(use.borrowers) and not use.exclusive)
        if retire:
            for use in self._uses.values():
                for dialect in use.borrowers:
                    dialect.borrow(None)
            self._uses.clear()
        return retire

    def step(self, region: Region, rows: Iterable[Row]) -> None:
        """Record a step with logits in this region, and lend it to the processors of the rows if that is allowed."""
        use = self._uses.get(region)
        if use is None or not use.exclusive:
            return
        use.steps += 1
        if use.steps > _MIN_EXCLUSIVE_STEPS:
            for dialect in {entry.dialect for row in rows for entry in row.request.chain}:
                dialect.borrow(region)
                use.borrowers.add(dialect)


def _domain_of(request: ActiveRequest) -> TrustDomain | None:
    domains = {entry.dialect.domain for entry in request.chain}
    return domains.pop() if len(domains) == 1 else None
