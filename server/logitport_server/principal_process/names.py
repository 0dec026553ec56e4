"""The processors that requests of the principal can name."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING

from logitport.core.bounded import BoundedTable
from logitport_server.principal_process import messages
from logitport_session.principals import REGISTER, Party, TrustDomain
from logitport_session.programs import source_of
from logitport_session.source import names_no_processor

if TYPE_CHECKING:
    from logitport.payload import Payload
    from logitport_proto import common_pb2
    from logitport_server.principal_process.link import Link
    from logitport_server.registry.policy import PayloadPolicy
    from logitport_session.installed import Installed
    from logitport_session.principals import Principal
    from logitport_session.source import Source

# A payload has at most 16 MiB by default, and its bytes are half of that.
_MAX_PAYLOADS = 64


class Names:
    """Finds processors: installed ones and payloads of requests here, registered ones by the front door. Thread-safe.

    Args:
        installed: the installed processors.
        policy: the operator's rules for payloads.
        link: the link to the front door, which has the registry.
    """

    def __init__(self, installed: Installed, policy: PayloadPolicy, link: Link) -> None:
        self._installed = installed
        self._policy = policy
        self._link = link
        self._payloads: BoundedTable[bytes, Payload] = BoundedTable(_MAX_PAYLOADS)
        self._lock = threading.Lock()

    @property
    def has_only_builtins(self) -> bool:
        """Whether no processors are installed in addition to the built-ins."""
        return self._installed.has_only_builtins

    def is_fast(self, builtin: str) -> bool:
        """Whether requests with this installed processor are admitted fast."""
        return self._installed.is_fast(builtin)

    def resolve(self, processor: common_pb2.Processor, principal: Principal, tenant: str) -> Source:
        """Look up a request's processor. Does not unpickle. Verifies a program.

        Raises:
            InvalidArgument, NotFound, AccessDenied, PayloadError, LimitExceeded: see the classes.
        """
        by = processor.WhichOneof("by")
        if by == "builtin":
            return self._installed.source(processor.builtin)
        if by == "payload":
            principal.check(REGISTER, "ship a processor with a request")
            shipped = self._policy.accept(processor.payload)
            return source_of(shipped, TrustDomain(principal.name, Party(principal.name, tenant), shipped.digest))
        if by is None:
            raise names_no_processor()
        owner, shipped = self._registered(getattr(processor, by), is_name=by == "name")
        self._policy.check_current(shipped, processor.name if by == "name" else "")
        return source_of(shipped, TrustDomain(owner, Party(principal.name, tenant)))

    def _registered(self, text: str, *, is_name: bool) -> tuple[str, Payload]:
        """Return the owner and the payload of a registered processor."""
        found: messages.Resolved | messages.Payload = self._link.call(
            messages.Resolve(text=text, is_name=is_name)
        ).message
        with self._lock:
            shipped = self._payloads.use(found.payload_id)
        if shipped is None:  # not sent with the first answer: most requests name one that is here
            found = self._link.call(messages.GetPayload(text=text, is_name=is_name)).message
            # The front door is trusted: it has made the bytes itself.
            shipped = pickle.loads(found.data)  # type: ignore[union-attr]  # noqa: S301
            with self._lock:
                self._payloads[found.payload_id] = shipped
        return found.owner, shipped
