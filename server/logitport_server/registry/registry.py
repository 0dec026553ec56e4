"""Registrations and their lookup, by name or digest. Payloads are checked elsewhere, before they are registered."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import TYPE_CHECKING

from logitport.errors import (
    InvalidArgument,
    LimitExceeded,
    NameTaken,
    NotFound,
)
from logitport_proto import admin_pb2, registry_pb2
from logitport_server.registry.catalog import Catalog
from logitport_server.registry.quarantine import Quarantine
from logitport_server.registry.stores.memory import MemoryStore
from logitport_server.registry.stores.seal import Seal
from logitport_server.registry.view import Entry
from logitport_session.processor_sources.names import check_name
from logitport_session.trust.principals import ADMIN, ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from logitport.payload import Payload
    from logitport_server.registry.change import Change
    from logitport_server.registry.policy import PayloadPolicy
    from logitport_server.registry.stores.base import Store
    from logitport_server.registry.view import View
    from logitport_session.trust.principals import Principal

_REGISTER = "; register it first, or have its owner share it"
_LOST = (
    "This server runs without --store: what was registered before its start is lost. Register it again, and start the "
    "server with --store DIR to keep registrations across restarts"
)
_LIST_THEM = "List returns those that you can see, with their names and digests"


class Registry:
    """The registered and the installed processors. Thread-safe.

    A registration belongs to the principal that made it. Other principals cannot see or use it unless it is shared,
    and cannot delete it without the scope "admin". The same payload registered by two principals is two registrations.
    All principals share one namespace; a name belongs to the principal that bound it first.

    If servers share a store, they share registrations, names and quarantines. A server follows the others by `poll`.

    Args:
        policy: the operator's rules for payloads.
        on_removed: called with the display name of a processor after its last registration is gone, on any server.

    Raises:
        LogitportError: the store cannot be read.
    """

    def __init__(
        self,
        policy: PayloadPolicy,
        *,
        max_registered: int,
        max_owned: int,
        quarantine: Quarantine | None = None,
        store: Store | None = None,
        seal: Seal | None = None,
        on_removed: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._policy = policy
        # `quarantine or ...` would replace an empty quarantine: its length of 0 makes it false.
        self._quarantine = Quarantine(after=sys.maxsize, call_seconds=1.0) if quarantine is None else quarantine
        self._max_registered = max_registered
        self._max_owned = max_owned
        self._advice = _REGISTER if store is not None else f"{_REGISTER}. {_LOST}"
        self._installed: Mapping[str, registry_pb2.ProcessorInfo] = {}
        self._catalog = Catalog(
            store or MemoryStore(), seal or Seal(), policy.accept_stored, self._quarantine, on_removed
        )

    @property
    def id(self) -> str:
        """Random name of the store: servers that share registrations have the same one."""
        return self._catalog.registry_id

    def set_installed(self, described: Mapping[str, registry_pb2.ProcessorInfo]) -> None:
        """Set the built-in and installed processors: their descriptions by name."""
        self._installed = described

    @property
    def num_registered(self) -> int:
        """Number of registered processors, of all owners."""
        return sum(1 for _ in self._catalog.view)

    @property
    def num_installed(self) -> int:
        """Number of built-in and installed processors."""
        return len(self._installed)

    def names_of(self, digest: str, owner: str) -> list[str]:
        """Return the names that this owner has bound to the processor, sorted."""
        entry = self._catalog.view.owners(digest).get(owner)
        return [] if entry is None else sorted(entry.names)

    @property
    def has_store(self) -> bool:
        """Whether the store could be read at the last poll."""
        return not self._catalog.outage

    def resolve_registered(self, text: str, principal: str, *, is_name: bool) -> Entry:
        """Resolve a registered name, or a digest, for a principal that may use it. Raises NotFound."""
        return self._catalog.view.resolve(text, principal, names=is_name, digests=not is_name, otherwise=self._advice)

    def register_checked(
        self,
        shipped: Payload,
        serialized: str,
        name: str,
        principal: Principal = ANONYMOUS,
        *,
        replace: bool,
        shared: bool = False,
    ) -> registry_pb2.ProcessorInfo:
        """Register a payload that was checked, and bind a name to it if one is given.

        What a dishonest check could gain is checked again: the name, the payload's kind and size, and its signature.

        Args:
            shipped: the payload.
            serialized: the payload's string, for the store.
            name: the name, or "".
            principal: the caller, the owner of what it registers.
            replace: whether a name that is bound to another processor of the principal is bound again.
            shared: whether other principals may use the processor.

        Raises:
            PayloadError, LimitExceeded: the payload is refused.
            InvalidArgument, NameTaken: the name is refused.
            LimitExceeded: the registry is full, or the principal has too many registrations or names.
            LogitportError: the store cannot be used.
        """
        if name:
            check_name(name)
        self._policy.check(shipped, len(serialized), name)

        def plan(view: View, change: Change) -> None:
            if name:
                self._check_name(view, name, shipped, principal, replace=replace)
            entry = Entry(shipped, principal.name, time.time(), shared)
            before = view.owners(shipped.digest).get(principal.name)
            if before is None:
                self._check_capacity(view, principal)
            else:  # the new payload replaces the old one: only its signature can differ
                entry = dataclasses.replace(before, payload=shipped, shared=shared)
            change.register(entry, serialized)
            if name:
                change.bind(name, entry)

        return self._describe(self._catalog.change(plan).owners(shipped.digest)[principal.name])

    def describe(self, processor: str, principal: Principal = ANONYMOUS) -> registry_pb2.ProcessorInfo:
        """Describe a built-in, a registered name or a digest. Raises NotFound."""
        if processor in self._installed:
            return self._installed[processor]
        entry = self._catalog.view.resolve(
            processor, principal.name, any_owner=principal.may(ADMIN), otherwise=f"; {_LIST_THEM}"
        )
        return self._describe(entry)

    def describe_all(self, principal: Principal = ANONYMOUS) -> list[registry_pb2.ProcessorInfo]:
        """Describe all visible processors: installed ones by name, then registered ones by their first name."""
        registered = [self._describe(entry) for entry in self._catalog.view if self._can_see(principal, entry)]
        registered.sort(key=lambda info: (list(info.names), info.digest))
        return [self._installed[name] for name in sorted(self._installed)] + registered

    def describe_digests(self, digests: Collection[str], principal: Principal) -> list[registry_pb2.ProcessorInfo]:
        """Describe the visible registrations of these payloads, with what other servers have changed just now.

        A client takes a registration or a name that is missing for deleted.

        Raises:
            LogitportError: the store cannot be read.
        """
        view = self._catalog.refresh()
        entries = (entry for digest in dict.fromkeys(digests) for entry in view.owners(digest).values())
        return [self._describe(entry) for entry in entries if self._can_see(principal, entry)]

    def delete(self, processor: str, principal: Principal = ANONYMOUS) -> list[str]:
        """Delete a name, or a digest with all its names. Returns the deleted names.

        Deleting a digest deletes the principal's own registration of it. A principal without one that has the scope
        "admin" deletes the registrations of all principals.

        Raises:
            NotFound: it does not exist, or the principal cannot see it.
            AccessDenied: it belongs to another principal.
            LogitportError: the store cannot be used.
        """
        if processor in self._installed:
            raise InvalidArgument(f"{processor!r} is a built-in; built-ins cannot be deleted")
        deleted: set[str] = set()

        def plan(view: View, change: Change) -> None:
            deleted.clear()
            entry = view.resolve(
                processor,
                principal.name,
                any_owner=principal.may(ADMIN),
                otherwise=f", so there is nothing to delete: {_LIST_THEM}",
            )
            if entry.owner != principal.name:
                principal.check(ADMIN, f"delete {processor!r}, which belongs to another principal")
            if view.named(processor) is not None:
                change.unbind(processor)
                deleted.add(processor)
                return
            owners = view.owners(processor)
            for removed in [owners[principal.name]] if principal.name in owners else list(owners.values()):
                change.remove(removed)
                deleted.update(removed.names)

        self._catalog.change(plan)
        return sorted(deleted)

    def unquarantine(self, processor: str, principal: Principal = ANONYMOUS) -> admin_pb2.UnquarantineResponse:
        """Lift the quarantine of a processor in all trust domains.

        Args:
            processor: a registered name or a digest. The digest of an unregistered payload of a request works, too.
            principal: the caller.

        Raises:
            AccessDenied: the principal lacks the scope "admin".
            NotFound: the processor is neither registered nor quarantined.
            LogitportError: the store cannot be used.
        """
        principal.check(ADMIN, "lift the quarantine of a processor")
        was_quarantined = self._catalog.lift(processor)
        try:
            entry = self._catalog.view.resolve(
                processor, principal.name, any_owner=True, otherwise=f", and none is quarantined; {_LIST_THEM}"
            )
        except NotFound:
            if not was_quarantined:
                raise
            info = registry_pb2.ProcessorInfo(digest=processor)
        else:
            was_quarantined |= self._catalog.lift(entry.payload.digest)
            info = self._describe(entry)
        return admin_pb2.UnquarantineResponse(processor=info, was_quarantined=was_quarantined)

    def poll(self) -> None:
        """Follow the changes of other servers, and store this server's quarantines. For `Poller`."""
        self._catalog.poll()

    def _describe(self, entry: Entry) -> registry_pb2.ProcessorInfo:
        info = entry.info()
        info.quarantined = self._quarantine.reason(info.digest, info.owner)
        return info

    @staticmethod
    def _can_see(principal: Principal, entry: Entry) -> bool:
        return entry.shared or entry.owner == principal.name or principal.may(ADMIN)

    def _check_name(self, view: View, name: str, shipped: Payload, principal: Principal, *, replace: bool) -> None:
        """Raise NameTaken or LimitExceeded if the principal cannot bind this name to the payload."""
        owner, bound = view.owner_of(name), view.named(name)
        if owner not in (None, principal.name):
            raise NameTaken(f"{name!r} belongs to another principal; choose another name")
        if bound is not None and bound.payload != shipped and not replace:
            raise NameTaken(
                f"{name!r} is bound to {bound.payload.display_name}; choose another name or tag, or register "
                "with replace"
            )
        # Names are limited because each is stored and listed.
        own = sum(len(entry.names) for entry in view if entry.owner == principal.name)
        if bound is None and own >= self._max_owned:
            raise LimitExceeded(
                f"{principal.display_name} has bound {self._max_owned} names, the limit for one principal: delete "
                "some, or raise --max-processors-per-principal"
            )

    def _check_capacity(self, view: View, principal: Principal) -> None:
        """Raise LimitExceeded if the principal cannot register another payload."""
        registered = [entry.owner for entry in view]
        if registered.count(principal.name) >= self._max_owned:
            raise LimitExceeded(
                f"{principal.display_name} has registered {self._max_owned} processors, the limit for one principal: "
                "delete some, or raise --max-processors-per-principal"
            )
        if len(registered) >= self._max_registered:
            raise LimitExceeded(f"the registry has {self._max_registered} processors, its limit: delete some")
