"""Every store: values by key, changed by compare-and-set, seen by all instances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logitport_server.registry.stores.base import Conflict, Index, Write
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.registry.stores.base import Store

    Open = Callable[[], Store]


def content(store: Store) -> dict[str, tuple[str, bytes]]:
    """Return all keys with revision and value. Checks that the index agrees with the values."""
    revisions = store.index().revisions
    found = store.read(sorted(revisions))
    assert {key: revision for key, (revision, _) in found.items()} == dict(revisions)
    return found


def test_an_empty_store(open_store: Open) -> None:
    store = open_store()
    assert store.index() == Index(store.version(), {})
    assert store.read(["a"]) == {}


def test_the_id_is_that_of_the_store(open_store: Open) -> None:
    one, other = open_store(), open_store()
    one.commit([Write("a", b"1")])
    assert one.id == other.id == open_store().id
    assert len(one.id) == 32


def test_a_value(open_store: Open) -> None:
    one, other = open_store(), open_store()
    revision = one.commit([Write("a/é/", b"\x00\xff\n"), Write("b", b"")])
    for store in (one, other):
        assert content(store) == {"a/é/": (revision, b"\x00\xff\n"), "b": (revision, b"")}


def test_each_commit_changes_the_version_for_all(open_store: Open) -> None:
    one, other = open_store(), open_store()
    versions = {other.version()}
    revision = one.commit([Write("a", b"1")])
    versions.add(other.version())
    revision = other.commit([Write("a", b"1", revision)])
    versions.add(one.version())
    one.commit([Write("a", None, revision)])
    versions.add(other.version())
    assert len(versions) == 4
    assert one.version() == one.version() == other.index().version


def test_a_replaced_value_has_another_revision(open_store: Open) -> None:
    store = open_store()
    first = store.commit([Write("a", b"1")])
    second = store.commit([Write("a", b"1", first)])
    assert first != second
    assert store.read(["a"]) == {"a": (second, b"1")}


@pytest.mark.parametrize(
    "expected", [{"a": "", "b": ""}, {"a": "0" * 32, "b": ""}, {"a": "held", "b": "held"}, {"c": "", "a": ""}]
)
def test_a_conflict_changes_nothing(open_store: Open, expected: dict[str, str]) -> None:
    store = open_store()
    held = store.commit([Write("a", b"1")])
    before, version = content(store), store.version()
    for value in (b"2", None):
        writes = [Write(key, value, held if found == "held" else found) for key, found in expected.items()]
        with pytest.raises(Conflict):
            store.commit(writes)
        assert content(store) == before
        assert store.version() == version


def test_a_deleted_key_can_be_written_again(open_store: Open) -> None:
    store = open_store()
    first = store.commit([Write("a", b"1")])
    store.commit([Write("a", None, first)])
    with pytest.raises(Conflict):
        store.commit([Write("a", b"2", first)])
    assert store.commit([Write("a", b"2")]) != first


def test_a_large_value(open_store: Open) -> None:
    value = bytes(range(256)) * (16 << 12)
    open_store().commit([Write("a", value)])
    assert open_store().read(["a"])["a"][1] == value


def test_one_of_many_instances_wins(open_store: Open) -> None:
    """Eight threads add to one number, and each creates the same keys."""
    stores = [open_store() for _ in range(8)]
    stores[0].commit([Write("number", b"0")])

    def work(store: Store) -> int:
        won = 0
        for step in range(10):
            while True:
                revision, value = store.read(["number"])["number"]
                try:
                    store.commit([Write("number", b"%d" % (int(value) + 1), revision)])
                    break
                except Conflict:
                    pass
            try:
                store.commit([Write(f"key {step}", b"")])
                won += 1
            except Conflict:
                pass
        return won

    with ThreadPoolExecutor(len(stores)) as threads:
        assert sum(threads.map(work, stores)) == 10
    assert content(stores[0])["number"][1] == b"80"


@pytest.fixture
def stores(open_store: Open) -> list[Store]:
    """Two instances, the same for all examples."""
    return [open_store(), open_store()]


KEYS = st.sampled_from("abcd")
# Of each write: key, value or None to delete, and whether it expects the revision that the key has.
WRITES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=3), st.booleans()), unique_by=lambda write: write[0])


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(commits=st.lists(st.tuples(st.integers(0, 1), WRITES), max_size=12))
def test_any_commits_by_two_instances(
    stores: list[Store], commits: list[tuple[int, list[tuple[str, bytes | None, bool]]]]
) -> None:
    model = content(stores[0])
    for instance, changes in commits:
        writes = [
            Write(key, value, model[key][0] if key in model else "") if right else Write(key, value, "0" * 32)
            for key, value, right in changes
        ]
        try:
            revision = stores[instance].commit(writes)
        except Conflict:
            assert not all(right for _, _, right in changes)
        else:
            assert all(right for _, _, right in changes)
            for key, value, _ in changes:
                model.pop(key, None)
                if value is not None:
                    model[key] = (revision, value)
        assert content(stores[1 - instance]) == content(stores[instance]) == model


def test_a_value_that_is_too_long_is_not_read(open_store: Open) -> None:
    """A writer of the store could otherwise use up the memory of all servers."""
    store = open_store()
    revision = store.commit([Write("fits", bytes(100)), Write("long", bytes(101))])
    store.max_value_bytes = 100
    assert store.read(["fits", "long", "none"]) == {"fits": (revision, bytes(100)), "long": (revision, None)}
    assert set(store.index().revisions) == {"fits", "long"}
    store.commit([Write("long", None, revision)])
    assert set(store.index().revisions) == {"fits"}
