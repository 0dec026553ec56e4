"""What is registered, by digest and by name: in memory, and in the store."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from logitport.errors import LogitportError, MalformedPayload, UnknownProcessor
from logitport_proto import registry_pb2
from logitport_server.registry.store import Binding, NoStore, Registration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from logitport.payload import Payload

logger = logging.getLogger(__name__)


@dataclass
class Entry:
    """One registration.

    Attributes:
        payload: what was registered.
        owner: name of the principal who did.
        registered_at: when, in seconds since the Unix epoch.
        shared: whether others may see and use it.
        names: what it is called.
    """

    payload: Payload
    owner: str
    registered_at: float
    shared: bool = False
    names: set[str] = field(default_factory=set)

    def info(self) -> registry_pb2.ProcessorInfo:
        """As it is told."""
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
    """Knows no rules but who may find what. Not safe to use from several threads."""

    def __init__(self, store: NoStore) -> None:
        self._store = store
        self._by_digest: dict[str, dict[str, Entry]] = {}  # digest, then owner, in the order of registration
        self._by_name: dict[str, Entry] = {}
        # Stored names whose processors cannot be registered at present, and whose they are.
        self._held: dict[str, str] = {}

    def __iter__(self) -> Iterator[Entry]:
        return (entry for owners in self._by_digest.values() for entry in owners.values())

    def load(self, accept: Callable[[str], Payload]) -> None:
        """Take in what is stored, if it is still accepted; the rest stays stored, and its names their owners'."""
        for stored in self._store.all(Registration):
            try:
                shipped = accept(stored.serialized)
                if shipped.digest != stored.digest:
                    raise MalformedPayload(f"its digest is {shipped.digest}")
            except LogitportError as error:
                logger.warning("the stored processor %s is left out: %s", stored.digest, error)
            else:
                self._add(Entry(shipped, stored.owner, stored.registered_at, stored.shared))
        for bound in self._store.all(Binding):
            entry = self._by_digest.get(bound.digest, {}).get(bound.owner)
            if entry is None:
                logger.warning("the stored name %s is left out: its processor %s is", bound.name, bound.digest)
                self._held[bound.name] = bound.owner
            else:
                self._bind(bound.name, entry)

    def named(self, name: str) -> Entry | None:
        """What a name is bound to."""
        return self._by_name.get(name)

    def owner_of(self, name: str) -> str | None:
        """Whose a name is, also if its processor is left out."""
        entry = self._by_name.get(name)
        return entry.owner if entry is not None else self._held.get(name)

    def owners(self, digest: str) -> Mapping[str, Entry]:
        """The registrations of one payload, by owner."""
        return self._by_digest.get(digest, {})

    def find(
        self, processor: str, asker: str, *, names: bool = True, digests: bool = True, everyones: bool = False
    ) -> Entry:
        """One's own before what others share. Raises UnknownProcessor, which tells nothing of what is another's."""
        found: Iterable[Entry] = ()
        if names and processor in self._by_name:
            found = [self._by_name[processor]]
        elif digests:
            found = sorted(self._by_digest.get(processor, {}).values(), key=lambda entry: entry.owner != asker)
        for entry in found:
            if everyones or entry.shared or entry.owner == asker:
                return entry
        raise UnknownProcessor(
            f"no registered name or digest is {processor!r}; register it first, or ask its owner to share it"
        )

    def keep(self, entry: Entry, serialized: str, name: str) -> None:
        """Store a registration, and a name for it if one is given; then add it, in the place of what it replaces.

        Raises:
            InternalError: it cannot be stored; nothing was changed.
        """
        registration = Registration(
            serialized=serialized,
            digest=entry.payload.digest,
            owner=entry.owner,
            shared=entry.shared,
            registered_at=entry.registered_at,
        )
        self._store.keep(registration)
        if name:
            self._store.keep(Binding(name=name, digest=entry.payload.digest, owner=entry.owner))
        self._add(entry)
        if name:
            self._bind(name, entry)

    def unbind(self, name: str) -> None:
        """Forget a name."""
        self._store.forget(Binding, name)
        self._by_name.pop(name).names.discard(name)

    def forget(self, entry: Entry) -> set[str]:
        """Forget a registration and its names, which are returned."""
        for name in entry.names:
            self._store.forget(Binding, name)
        self._store.forget(Registration, entry.payload.digest, entry.owner)
        for name in entry.names:
            del self._by_name[name]
        owners = self._by_digest[entry.payload.digest]
        del owners[entry.owner]
        if not owners:
            del self._by_digest[entry.payload.digest]
        return entry.names

    def _add(self, entry: Entry) -> None:
        self._by_digest.setdefault(entry.payload.digest, {})[entry.owner] = entry
        for name in entry.names:
            self._by_name[name] = entry

    def _bind(self, name: str, entry: Entry) -> None:
        bound = self._by_name.get(name)
        if bound is not None:
            bound.names.discard(name)
        self._by_name[name] = entry
        self._held.pop(name, None)
        entry.names.add(name)
