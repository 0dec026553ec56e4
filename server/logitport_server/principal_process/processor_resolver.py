"""Resolves the processors that requests name: installed ones and payloads here, registered names in the front door."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from logitport import payload
from logitport.system.bounded import BoundedTable
from logitport_server.principal_process import process_messages
from logitport_server.principal_process.channel import read_memory
from logitport_session.processor_sources.programs import source_of
from logitport_session.processor_sources.source import names_no_processor
from logitport_session.resources import descriptors
from logitport_session.trust.principals import REGISTER, Party, TrustDomain

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport.payload import Payload
    from logitport_proto import common_pb2
    from logitport_server.principal_process.link import Link
    from logitport_server.registry.policy import PayloadPolicy
    from logitport_session.processor_sources.installed import Installed
    from logitport_session.processor_sources.source import Source
    from logitport_session.trust.principals import Principal

    # From a name or a digest, the calling principal, and whether it is a name, to the owner and the payload of a
    # registration. Raises NotFound.
    FindRegistered = Callable[[str, Principal, bool], tuple[str, Payload]]

# A payload has at most 16 MiB by default, and its bytes are half of that.
_MAX_PAYLOADS = 64


class ProcessorResolver:
    """Finds processors: installed ones and payloads of requests here, registered ones by a function. Thread-safe.

    Args:
        installed: the installed processors.
        policy: the operator's rules for payloads.
        find_registered: finds registered processors.
    """

    def __init__(self, installed: Installed, policy: PayloadPolicy, find_registered: FindRegistered) -> None:
        self.installed = installed
        self._policy = policy
        self._find_registered = find_registered

    def resolve(self, processor: common_pb2.Processor, principal: Principal, tenant: str = "") -> Source:
        """Look up a request's processor. Does not unpickle. Verifies a program.

        Args:
            processor: the processor, as named in the request.
            principal: the engine that sent the request.
            tenant: the tenant that the engine names in the request, or "".

        Raises:
            InvalidArgument, NotFound, AccessDenied, PayloadError, LimitExceeded: see the classes.
        """
        by = processor.WhichOneof("by")
        if by == "builtin":
            return self.installed.source(processor.builtin)
        if by == "payload":
            principal.check(REGISTER, "ship a processor with a request")
            shipped = self._policy.accept(processor.payload)
            return source_of(shipped, TrustDomain(principal.name, Party(principal.name, tenant), shipped.digest))
        if by is None:
            raise names_no_processor()
        owner, shipped = self._find_registered(getattr(processor, by), principal, by == "name")
        self._policy.check_current(shipped, processor.name if by == "name" else "")
        return source_of(shipped, TrustDomain(owner, Party(principal.name, tenant)))


class Registered:
    """The registered processors, which the front door has. Keeps the payloads that were used last. Thread-safe.

    Args:
        link: the link to the front door.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._payloads: BoundedTable[bytes, Payload] = BoundedTable(_MAX_PAYLOADS)
        self._lock = threading.Lock()

    def find(self, text: str, principal: Principal, is_name: bool) -> tuple[str, Payload]:  # noqa: ARG002
        """Resolve a name or a digest, by `front_door/resolving.py`. Returns owner and payload. Raises NotFound."""
        resolved: process_messages.Resolved = self._link.call(
            process_messages.Resolve(text=text, is_name=is_name)
        ).message
        with self._lock:
            shipped = self._payloads.use(resolved.payload_id)
        if shipped is not None:
            return resolved.owner, shipped
        # Not sent with the first answer: most requests name one that is here.
        answer = self._link.call(process_messages.GetPayload(text=text, is_name=is_name))
        found: process_messages.FoundPayload = answer.message
        if not answer.descriptors:
            raise descriptors.shortage()
        shipped = payload.labelled(read_memory(answer.descriptors[0]), found.labels, is_program=found.is_program)
        with self._lock:
            self._payloads[found.payload_id] = shipped
        return found.owner, shipped
