"""The registered processors at one moment, by digest and by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from logitport.errors import NotFound
from logitport_proto import registry_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from logitport.payload import Payload
    from logitport_server.registry.stored_records import Binding


@dataclass(frozen=True)
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
    names: frozenset[str] = frozenset()

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


class View:
    """The registrations, with visibility as the only rule. Immutable, so threads can read it without a lock.

    Args:
        entries: the registrations, without names.
        bindings: the names. One without its registration stays reserved for its owner: the processor is refused.
    """

    def __init__(self, entries: Iterable[Entry] = (), bindings: Iterable[Binding] = ()) -> None:
        names: dict[tuple[str, str], set[str]] = {}
        bindings = list(bindings)
        for binding in bindings:
            names.setdefault((binding.digest, binding.owner), set()).add(binding.name)
        self._by_digest: dict[str, dict[str, Entry]] = {}
        # The same order on every server: the first registration comes first.
        for entry in sorted(entries, key=lambda entry: (entry.registered_at, entry.owner, entry.payload.digest)):
            named = replace(entry, names=frozenset(names.get((entry.payload.digest, entry.owner), ())))
            self._by_digest.setdefault(entry.payload.digest, {})[entry.owner] = named
        self._by_name: dict[str, Entry] = {}
        self._owners = {binding.name: binding.owner for binding in bindings}
        for binding in bindings:
            bound = self.owners(binding.digest).get(binding.owner)
            if bound is not None:
                self._by_name[binding.name] = bound

    def __iter__(self) -> Iterator[Entry]:
        return (entry for owners in self._by_digest.values() for entry in owners.values())

    @property
    def display_names(self) -> set[str]:
        """The display names of all processors."""
        return {entry.payload.display_name for entry in self}

    def named(self, name: str) -> Entry | None:
        """Return the registration that the name is bound to, if any."""
        return self._by_name.get(name)

    def owner_of(self, name: str) -> str | None:
        """Return the owner of a name, also of a reserved one; None if the name is free."""
        return self._owners.get(name)

    def owners(self, digest: str) -> Mapping[str, Entry]:
        """Return the registrations of one payload, by owner."""
        return self._by_digest.get(digest, {})

    def resolve(
        self,
        processor: str,
        principal: str,
        *,
        names: bool = True,
        digests: bool = True,
        any_owner: bool = False,
        otherwise: str,
    ) -> Entry:
        """Resolve a registered name or digest: to the principal's own registration, or else one that another shares.

        Args:
            processor: a name or digest.
            principal: name of the principal.
            names: whether to search the names.
            digests: whether to search the digests.
            any_owner: whether to include unshared registrations of other principals.
            otherwise: end of the error's message: what to do.

        Raises:
            NotFound: it does not exist, or its owner does not share it. Both have the same error.
        """
        found: Iterable[Entry] = ()
        if names and processor in self._by_name:
            found = [self._by_name[processor]]
        elif digests:
            found = sorted(self._by_digest.get(processor, {}).values(), key=lambda entry: entry.owner != principal)
        for entry in found:
            if any_owner or entry.shared or entry.owner == principal:
                return entry
        raise NotFound(f"no registered name or digest is {processor!r}{otherwise}")
