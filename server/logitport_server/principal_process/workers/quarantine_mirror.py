"""The quarantines that concern one principal, as the front door has them."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport_server.principal_process.worker_messages import (
    Domain,
    QuarantineSnapshot,
    RecordFailure,
    RecordSlowCall,
)
from logitport_server.registry.quarantine import Quarantine

if TYPE_CHECKING:
    from logitport_server.principal_process.link import Link
    from logitport_server.principal_process.message import Message
    from logitport_session.trust.principals import TrustDomain

logger = logging.getLogger(__name__)


class QuarantineMirror(Quarantine):
    """Passes failures and slow calls to the front door, and checks processors with the last snapshot that it sent.

    A quarantine that a failure begins is known here when `record_failure` returns: its snapshot comes before the
    answer. `record_failure` and `record_call` wait for the front door, so the thread of `Link.run` must not call them.

    Args:
        principal: name of the process's principal.
        call_seconds: the call timeout.
    """

    def __init__(self, link: Link, principal: str, call_seconds: float) -> None:
        super().__init__(after=sys.maxsize, call_seconds=call_seconds)
        self._link = link
        self._principal = principal
        self._own: dict[tuple[TrustDomain | None, str], str] = {}
        self._for_all: dict[str, str] = {}
        link.handle(QuarantineSnapshot, self._adopt_all)

    def __len__(self) -> int:
        return len(self._own)

    def reason_in(self, domain: TrustDomain | None, digest: str) -> str:
        return self._own.get((domain, digest), "")

    def entries(self) -> list[tuple[TrustDomain | None, str, str]]:
        return [(domain, digest, reason) for (domain, digest), reason in self._own.items()]

    def record_failure(self, domain: TrustDomain | None, digest: str, reason: str, seconds: float = 0.0) -> None:
        with self._lock:
            self.failures += 1
        self._call(RecordFailure(domain=Domain.of(domain), digest=digest, reason=reason, seconds=seconds))

    def record_slow_call(self, domain: TrustDomain | None, digest: str, seconds: float) -> None:
        self._call(RecordSlowCall(domain=Domain.of(domain), digest=digest, seconds=seconds))

    def _reason_now(self, domain: TrustDomain | None, digest: str) -> str:
        return self._own.get((domain, digest)) or self._for_all.get(digest, "")

    def _call(self, message: Message) -> None:
        try:
            self._link.call(message)
        except (LogitportError, OSError) as error:
            # The step goes on: the call that is charged has an error, or a result, of its own.
            logger.warning("the front door has not recorded a failure or a slow call: %s", error)

    def _adopt_all(self, snapshot: QuarantineSnapshot, _descriptors: list[int]) -> None:
        # Replaced as a whole: `check` needs no lock.
        self._for_all = snapshot.for_all
        self._own = {(one.domain.trust_domain(self._principal), one.digest): one.reason for one in snapshot.own}
