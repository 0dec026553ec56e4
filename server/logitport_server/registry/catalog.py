"""Registered processors by digest and by name, in memory and in the store."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport.errors import LogitportError, MalformedPayload, UnknownProcessor
from logitport_proto import registry_pb2
from logitport_server.registry.store import Binding, NoStore, Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from logitport.payload import Payload

logger = logging.getLogger(__name__)


@dataclass
class Entry:
    """One registration.

    Attributes:
        payload: the payload.
        owner: name of the principal that registered it.
        registered_at: in seconds since the Unix epoch.
        shared: whether other principals may see and use it.
        names: the names bound to it.
    """

    payload: Payload
    owner: str
    registered_at: float
    shared: bool = False
    names: set[str] = field(default_factory=set)

    def info(self) -> registry_pb2.ProcessorInfo:
        """Return the message that describes the registration to clients."""
        return registry_pb2.ProcessorInfo(
            digest=self.payload.digest,
            owner=self.owner,
            shared=self.shared,
            names=sorted(self.names),
            python=self.payload.python,
            dill=self.payload.dill,
            size_bytes=len(self.payload.data),
            registered_at=self.registered_at,
            class_name=self.payload.class_name,
            dialect=self.payload.dialect,
        )


class Catalog:
    """The registrations, with visibility as the only rule. Not thread-safe."""

    def __init__(self, store: NoStore) -> None:
        self._store = store
        self._by_digest: dict[str, dict[str, Entry]] = {}  # by digest, then by owner, in the order of registration
        self._by_name: dict[str, Entry] = {}
        # Owners of stored names that stay reserved, because the processor is refused at present.
        self._reserved: dict[str, str] = {}

    def __iter__(self) -> Iterator[Entry]:
        return (entry for owners in self._by_digest.values() for entry in owners.values())

    def load(self, accept: Callable[[str], Payload]) -> None:
        """Add the stored registrations that are still accepted. The others stay stored, and their names reserved."""
        for stored in self._store.all(Registration):
            try:
                shipped = accept(stored.serialized)
                if shipped.digest != stored.digest:
                    raise MalformedPayload(f"its digest is {shipped.digest}")
            except LogitportError as error:
                logger.warning("the stored processor %s was not loaded: %s", stored.digest, error)
            else:
                self._add(Entry(shipped, stored.owner, stored.registered_at, stored.shared))
        for bound in self._store.all(Binding):
            entry = self._by_digest.get(bound.digest, {}).get(bound.owner)
            if entry is None:
                logger.warning(
                    "the stored name %s was not loaded, because its processor %s could not be loaded",
                    bound.name,
                    bound.digest,
                )
                self._reserved[bound.name] = bound.owner
            else:
                self._bind(bound.name, entry)

    def named(self, name: str) -> Entry | None:
        """Return the registration that the name is bound to, if any."""
        return self._by_name.get(name)

    def owner_of(self, name: str) -> str | None:
        """Return the owner of a name, also of a reserved one; None if the name is free."""
        entry = self._by_name.get(name)
        return entry.owner if entry is not None else self._reserved.get(name)

    def owners(self, digest: str) -> Mapping[str, Entry]:
        """Return the registrations of one payload, by owner."""
        return self._by_digest.get(digest, {})

    def find(
        self,
        processor: str,
        principal: str,
        *,
        names: bool = True,
        digests: bool = True,
        any_owner: bool = False,
        otherwise: str = "; register it first, or have its owner share it",
    ) -> Entry:
        """Return the principal's own registration, or else one that another principal shares.

        Args:
            processor: a name or digest.
            principal: name of the principal.
            names: whether to search the names.
            digests: whether to search the digests.
            any_owner: whether to include unshared registrations of other principals.
            otherwise: end of the error's message: what to do.

        Raises:
            UnknownProcessor: there is none. The error is the same if another principal's exists but is not shared.
        """
        found: Iterable[Entry] = ()
        if names and processor in self._by_name:
            found = [self._by_name[processor]]
        elif digests:
            found = sorted(self._by_digest.get(processor, {}).values(), key=lambda entry: entry.owner != principal)
        for entry in found:
            if any_owner or entry.shared or entry.owner == principal:
                return entry
        raise UnknownProcessor(f"no registered name or digest is {processor!r}{otherwise}")

    def add(self, entry: Entry, serialized: str, name: str) -> None:
        """Store a registration, and its name if one is given. An earlier registration or binding is replaced.

        Raises:
            InternalError: the store cannot be written. Nothing has changed, neither stored nor in memory.
        """
        saved: list[Registration | Binding] = [_registration(entry, serialized)]
        if name:
            saved.append(_binding(name, entry))
        self._store.change(saved=saved)
        self._add(entry)
        if name:
            self._bind(name, entry)

    def unbind(self, name: str) -> None:
        """Delete a name. Raises InternalError as `add`."""
        entry = self._by_name[name]
        self._store.change(deleted=[_binding(name, entry)])
        del self._by_name[name]
        entry.names.discard(name)

    def remove(self, entries: Sequence[Entry]) -> set[str]:
        """Delete registrations and their names. Returns the names. Raises InternalError as `add`."""
        names = {name: entry for entry in entries for name in entry.names}
        bindings = [_binding(name, entry) for name, entry in names.items()]
        self._store.change(deleted=[*bindings, *(_registration(entry, "") for entry in entries)])
        for name in names:
            del self._by_name[name]
        for entry in entries:
            owners = self._by_digest[entry.payload.digest]
            del owners[entry.owner]
            if not owners:
                del self._by_digest[entry.payload.digest]
        return set(names)

    def _add(self, entry: Entry) -> None:
        self._by_digest.setdefault(entry.payload.digest, {})[entry.owner] = entry
        for name in entry.names:
            self._by_name[name] = entry

    def _bind(self, name: str, entry: Entry) -> None:
        bound = self._by_name.get(name)
        if bound is not None:
            bound.names.discard(name)
        self._by_name[name] = entry
        self._reserved.pop(name, None)
        entry.names.add(name)


def _registration(entry: Entry, serialized: str) -> Registration:
    return Registration(
        serialized=serialized,
        digest=entry.payload.digest,
        owner=entry.owner,
        shared=entry.shared,
        registered_at=entry.registered_at,
    )


def _binding(name: str, entry: Entry) -> Binding:
    return Binding(name=name, digest=entry.payload.digest, owner=entry.owner)
