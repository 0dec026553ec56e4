"""A change of the registry's content, and its writes to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Union

from logitport_server.registry.stored_records import Binding, Quarantined, Registration, binding_key, registration_key
from logitport_server.registry.stores.base import Write
from logitport_server.registry.view import Entry

if TYPE_CHECKING:
    from logitport_server.registry.stored_records import Record
    from logitport_server.registry.stores.seal import Seal

Item = Union[Entry, Binding, Quarantined]


class Held(NamedTuple):
    """Known content of a key of the store.

    Attributes:
        revision: the revision of its value.
        item: its content; None if it is invalid, or its payload is refused.
    """

    revision: str
    item: Item | None


class Change:
    """Records to save and to delete. All of it happens, or nothing."""

    def __init__(self) -> None:
        self.saved: dict[str, tuple[Record, Item]] = {}
        self.deleted: set[str] = set()

    def register(self, entry: Entry, serialized: str) -> None:
        """Save a registration. An earlier one of the same payload and owner is replaced; it keeps its names."""
        record = Registration(
            serialized=serialized,
            digest=entry.payload.digest,
            owner=entry.owner,
            shared=entry.shared,
            registered_at=entry.registered_at,
        )
        self.saved[record.key] = (record, entry)

    def bind(self, name: str, entry: Entry) -> None:
        """Bind a name. An earlier binding of it is replaced.

        The same change must save the registration. Its new revision makes a deletion on another server, which would
        not delete this name, conflict.
        """
        record = Binding(name=name, digest=entry.payload.digest, owner=entry.owner)
        self.saved[record.key] = (record, record)

    def quarantine(self, record: Quarantined) -> None:
        """Save a quarantine."""
        self.saved[record.key] = (record, record)

    def unbind(self, name: str) -> None:
        """Delete a name."""
        self.deleted.add(binding_key(name))

    def remove(self, entry: Entry) -> None:
        """Delete a registration and its names."""
        self.deleted.add(registration_key(entry.payload.digest, entry.owner))
        for name in entry.names:
            self.unbind(name)

    def writes(self, held: dict[str, Held], seal: Seal) -> list[Write]:
        """Return the changes of keys, which expect that no other server has changed them."""
        values = {key: seal.add(key, record.encode()) for key, (record, _) in self.saved.items()}
        keys = [*values, *(key for key in self.deleted if key in held)]
        return [Write(key, values.get(key), held[key].revision if key in held else "") for key in keys]
