"""The rotation of the fleet's key, in stores of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_server.registry.stores.base import Store, Write
from logitport_server.registry.stores.memory import MemoryStore
from logitport_server.registry.stores.resealing import reseal
from logitport_server.registry.stores.seal import Seal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OLD, NEW = Seal(b"o" * 32), Seal(b"n" * 32)
BOTH = Seal(b"n" * 32, b"o" * 32)


def values(store: Store) -> dict[str, bytes]:
    return {key: value for key, (_, value) in store.read(list(store.index().revisions)).items()}


def test_values_of_the_old_key_get_the_new_one(open_store: Callable[[], Store]) -> None:
    store = open_store()
    store.commit([Write(key, OLD.add(key, b"data")) for key in ("a", "b")])
    store.commit([Write("c", NEW.add("c", b"data"))])
    before = store.index().revisions["c"]
    assert reseal(store, BOTH) == 2
    assert values(store) == {key: NEW.add(key, b"data") for key in ("a", "b", "c")}
    assert store.index().revisions["c"] == before
    assert reseal(store, BOTH) == 0


def test_values_without_a_valid_seal_stay(open_store: Callable[[], Store]) -> None:
    """A value of a key that the file does not have must not become valid."""
    store = open_store()
    invalid = {"a": Seal(b"x" * 32).add("a", b""), "b": Seal().add("b", b""), "c": OLD.add("a", b""), "d": b""}
    store.commit([Write(key, value) for key, value in invalid.items()])
    assert reseal(store, BOTH) == 0
    assert values(store) == invalid
    store.max_value_bytes = 10
    assert reseal(store, BOTH) == 0


def test_a_value_that_another_server_changes_meanwhile() -> None:
    class Contended(MemoryStore):
        def commit(self, writes: Sequence[Write]) -> str:
            if others:
                change, value = others.pop()
                super().commit([Write(change, value, self.index().revisions[change])])
            return super().commit(writes)

    others: list[tuple[str, bytes]] = []
    store = Contended()
    store.commit([Write("a", OLD.add("a", b"1"))])
    others.append(("a", OLD.add("a", b"2")))
    assert reseal(store, BOTH) == 1
    assert values(store) == {"a": NEW.add("a", b"2")}
