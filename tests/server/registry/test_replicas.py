"""Several registries on one store, of each kind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from logitport import LimitExceeded, LogitportError, NameTaken, NotFound, ProcessorFailed
from logitport_builtins import BUILTINS
from logitport_proto import common_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.quarantine import Quarantine
from logitport_server.registry.stored_records import Binding, Registration
from logitport_server.registry.stores.base import Conflict, Index, Store, StoreError, Write
from logitport_server.registry.stores.memory import MemoryStore
from logitport_server.registry.stores.seal import Seal
from logitport_session.trust.principals import ADMIN, APPLY, REGISTER, Party, Principal, TrustDomain
from tests.toy_processors import AddOne, HalveInPlace, Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Open = Callable[..., "Replica"]

ONE, TWO, THREE = Unchanged.to_str(), AddOne.to_str(), HalveInPlace.to_str()
ANN, BOB = (Principal(name, frozenset({APPLY, REGISTER})) for name in ("ann", "bob"))
ROOT = Principal("root", frozenset({APPLY, REGISTER, ADMIN}))
POLICY = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20)
DIGEST = POLICY.accept(ONE).digest
DOMAIN = TrustDomain("ann", Party("bob", "é"))
SEAL = Seal(b"k" * 32)


class Replica(LocalRegistry):
    """A registry with a quarantine of its own."""

    def __init__(self, store: Store, seal: Seal = SEAL, max_owned: int = 8) -> None:
        self.quarantine = Quarantine(after=1, call_seconds=1.0)
        self.quarantine.track_changes()
        super().__init__(
            POLICY, max_registered=32, max_owned=max_owned, quarantine=self.quarantine, store=store, seal=seal
        )


def seen(replica: Replica) -> list[tuple[str, str, bool, list[str], str]]:
    return [
        (info.digest, info.owner, info.shared, list(info.names), info.quarantined)
        for info in replica.describe_all(ROOT)[len(BUILTINS) :]
    ]


@pytest.fixture
def replicas(open_store: Callable[[], Store]) -> tuple[Replica, Replica]:
    return Replica(open_store()), Replica(open_store())


@pytest.fixture
def new_replica(open_store: Callable[[], Store]) -> Open:
    return lambda **options: Replica(open_store(), **options)


def test_changes_reach_the_other_replica_at_its_next_poll(replicas: tuple[Replica, Replica], new_replica: Open) -> None:
    one, other = replicas
    changes: list[Callable[[], object]] = [
        lambda: one.register(ONE, "team/one", ANN, replace=False, shared=True),
        lambda: one.register(ONE, "bob/one", BOB, replace=False),
        lambda: one.register(TWO, "team/one", ANN, replace=True),
        lambda: one.register(ONE, "", ANN, replace=False, shared=False),
        lambda: one.delete("bob/one", BOB),
        lambda: one.delete(DIGEST, ROOT),
    ]
    for change in changes:
        before = seen(other)
        change()
        assert seen(other) == before != seen(one)
        other.poll()
        assert seen(other) == seen(one) == seen(new_replica())
    assert other.describe("team/one", ANN).class_name == "AddOne"


def test_digests_that_another_replica_has_changed(replicas: tuple[Replica, Replica]) -> None:
    """A client must not take what is not read yet for deleted."""
    one, other = replicas
    assert one.id == other.id != Replica(MemoryStore()).id
    one.register(ONE, "team/one", ANN, replace=False)
    one.register(ONE, "", BOB, replace=False)
    assert seen(other) == []
    (found,) = other.describe_digests([DIGEST, DIGEST, "00"], ANN)
    assert (found.owner, list(found.names)) == ("ann", ["team/one"])
    one.register(ONE, "team/other", ANN, replace=False)
    (found,) = other.describe_digests([DIGEST], ANN)
    assert list(found.names) == ["team/one", "team/other"], "a name of a digest that was known"
    assert [found.owner for found in other.describe_digests([DIGEST], ROOT)] == ["ann", "bob"]
    one.delete(DIGEST, ANN)
    other.poll()
    assert other.describe_digests([DIGEST], ANN) == []


def test_digests_while_the_store_is_lost() -> None:
    """Nothing is answered that could lack a name; requests use what is known."""
    store = CountingStore()
    replica = Replica(store)
    replica.register(ONE, "", ANN, replace=False)
    replica.poll()
    store.calls.clear()
    assert len(replica.describe_digests([DIGEST], ANN)) == 1
    assert store.calls == ["version"]
    store.error = StoreError("redis is gone")
    for _ in range(2):
        with pytest.raises(LogitportError, match="store cannot be used: redis is gone"):
            replica.describe_digests([DIGEST], ANN)
    assert store.calls == ["version"] * 2, "the second call has used the store"
    assert replica.resolve(common_pb2.Processor(digest=DIGEST), ANN)
    store.error = None
    replica.poll()
    assert len(replica.describe_digests([DIGEST], ANN)) == 1


def test_calls_that_wait_for_one_that_finds_the_store_lost() -> None:
    """Each attempt may take the time of a timeout."""
    store = CountingStore()
    replica = Replica(store)
    replica.poll()
    store.calls.clear()
    waiting, ends = threading.Event(), threading.Event()

    def version() -> str:
        store.calls.append("version")
        waiting.set()
        assert ends.wait(60)
        raise StoreError("redis is gone")

    store.version = version  # type: ignore[method-assign]
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(replica.describe_digests, [DIGEST], ANN)
        assert waiting.wait(60)
        others = [pool.submit(replica.describe_digests, [DIGEST], ANN) for _ in range(3)]
        ends.set()
        for call in (first, *others):
            with pytest.raises(LogitportError, match="store cannot be used: redis is gone"):
                call.result()
    assert store.calls == ["version"]


def test_a_poll_without_changes_reads_nothing() -> None:
    counting = CountingStore()
    replica = Replica(counting)
    replica.register(ONE, "", ANN, replace=False)
    replica.poll()
    counting.calls.clear()
    for _ in range(3):
        replica.poll()
    assert counting.calls == ["version"] * 3
    replica.resolve(common_pb2.Processor(digest=DIGEST), ANN)
    assert len(counting.calls) == 3, "a look-up uses the store"


def test_replicas_that_bind_one_name_at_the_same_time(new_replica: Open) -> None:
    replicas = [new_replica() for _ in range(6)]
    principals = [Principal(f"p{number}", frozenset({APPLY, REGISTER})) for number in range(6)]

    def bind(number: int, attempt: int) -> str:
        try:
            name = f"team/x{attempt}"
            return replicas[number].register((ONE, TWO)[number % 2], name, principals[number], replace=False).owner
        except NameTaken:
            return ""

    for attempt in range(5):
        with ThreadPoolExecutor(len(replicas)) as threads:
            owners = list(threads.map(lambda number: bind(number, attempt), range(6)))  # noqa: B023
        (owner,) = filter(None, owners)
        for replica in replicas:
            replica.poll()
            assert replica.describe(f"team/x{attempt}", ROOT).owner == owner


def test_a_deletion_and_a_binding_at_the_same_time(new_replica: Open) -> None:
    """Never a name without its registration."""
    one, other = new_replica(), new_replica()
    for attempt in range(10):
        one.register(ONE, "", ANN, replace=False)
        with ThreadPoolExecutor(2) as threads:
            deleting = threads.submit(one.delete, DIGEST, ANN)
            binding = threads.submit(other.register, ONE, f"team/x{attempt}", ANN, replace=False)
            deleting.result()
            binding.result()
        one.poll()
        other.poll()
        assert seen(one) == seen(other)
        assert one._catalog.view._owners.keys() == {name for found in seen(one) for name in found[3]}


def test_the_quota_counts_what_other_replicas_registered(new_replica: Open) -> None:
    one, other = new_replica(max_owned=2), new_replica(max_owned=2)
    one.register(ONE, "", ANN, replace=False)
    other.register(TWO, "", ANN, replace=False)
    with pytest.raises(LimitExceeded, match="has registered 2 processors"):
        one.register(THREE, "", ANN, replace=False)


def test_a_quarantine_and_its_lifting_reach_the_other_replica(
    replicas: tuple[Replica, Replica], new_replica: Open
) -> None:
    one, other = replicas
    one.register(ONE, "team/one", ANN, replace=False, shared=True)
    for lifting in (one, other):
        one.quarantine.record_failure(DOMAIN, DIGEST, "it crashed")
        for replica in (one, other):
            replica.poll()
        restarted = new_replica()
        for replica in (one, other, restarted):
            with pytest.raises(ProcessorFailed, match="it crashed"):
                replica.quarantine.check(DOMAIN, DIGEST, "team/one")
            replica.quarantine.check(DOMAIN._replace(owner="bob"), DIGEST, "team/one")
            assert "it crashed" in seen(replica)[0][4]
        assert lifting.unquarantine("team/one", ROOT).was_quarantined
        assert not lifting.unquarantine("team/one", ROOT).was_quarantined
        for replica in (one, other, restarted):
            replica.poll()
            replica.quarantine.check(DOMAIN, DIGEST, "team/one")
            assert not replica.quarantine._records.get("bob"), "charges are left"


def test_three_principals_on_three_replicas_quarantine_for_all(new_replica: Open) -> None:
    replicas = [new_replica() for _ in range(3)]
    for number, replica in enumerate(replicas):
        replica.quarantine.record_failure(TrustDomain("ann", Party(f"p{number}")), DIGEST, "it crashed")
        replica.poll()
    for replica in replicas:
        replica.poll()
        with pytest.raises(ProcessorFailed, match="for 3 principals"):
            replica.quarantine.check(TrustDomain("ann", Party("another")), DIGEST, "x")


def test_quarantines_that_come_and_go_while_the_store_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of changes that wait for the store has a limit."""
    monkeypatch.setattr("logitport_server.registry.quarantine._MAX_RECORDS_OF_PRINCIPAL", 2)
    store = CountingStore()
    replica = Replica(store)
    replica.quarantine.record_failure(DOMAIN, "stored", "it crashed")
    replica.poll()
    store.error = StoreError("redis is gone")
    for number in range(20):
        replica.quarantine.record_failure(DOMAIN, str(number), "it crashed")
        replica.poll()
    waiting = replica.quarantine.take_changes()
    assert {digest for _, digest in waiting} == {"stored", "18", "19"}
    replica.quarantine.put_back(waiting)
    store.error = None
    replica.poll()
    assert {item.digest for _, item in Replica(store)._catalog._quarantines()} == {"18", "19"}


def test_a_server_without_a_store_keeps_no_second_copy_of_payloads() -> None:
    store = MemoryStore(keep_values=False)
    replica = Replica(store)
    for shared in (False, True):
        replica.register(ONE, "team/one", ANN, replace=False, shared=shared)
        replica.poll()
    assert seen(replica) == [(DIGEST, "ann", True, ["team/one"], "")]
    assert not any(value for _, value in store._values.values())
    replica.delete(DIGEST, ANN)
    assert not seen(replica)


class CountingStore(MemoryStore):
    """Records its calls, and can be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.error: StoreError | None = None
        self.loses_replies = False

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error

    def version(self) -> str:
        self._called("version")
        return super().version()

    def index(self) -> Index:
        self._called("index")
        return super().index()

    def read(self, keys: Sequence[str]) -> dict[str, tuple[str, bytes]]:
        self._called("read")
        return super().read(keys)

    def commit(self, writes: Sequence[Write]) -> str:
        self._called("commit")
        revision = super().commit(writes)
        if self.loses_replies:
            raise StoreError("the connection was lost", uncertain=True)
        return revision


def test_a_store_that_is_lost_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = CountingStore()
    replica, other = Replica(store), Replica(store)
    replica.register(ONE, "team/one", ANN, replace=False)
    replica.poll()
    store.error = StoreError("redis is gone")
    for _ in range(3):
        replica.poll()
    assert caplog.text.count("redis is gone; what is registered stays in use") == 1
    assert replica.resolve(common_pb2.Processor(name="team/one"), ANN).key == DIGEST
    replica.quarantine.record_failure(DOMAIN, DIGEST, "it crashed")
    replica.poll()
    store.calls.clear()
    for refused in (
        lambda: replica.register(TWO, "", ANN, replace=False),
        lambda: replica.delete("team/one", ANN),
        lambda: replica.unquarantine("team/one", ROOT),
    ):
        with pytest.raises(LogitportError, match="redis is gone; nothing has changed"):
            refused()
    assert not store.calls, "each caller waits for a timeout"
    with pytest.raises(ProcessorFailed):
        replica.quarantine.check(DOMAIN, DIGEST, "x")
    store.error = None
    replica.poll()
    assert caplog.text.count("the store can be used again") == 1
    replica.register(TWO, "", ANN, replace=False)
    other.poll()
    assert seen(other) == seen(replica)
    with pytest.raises(ProcessorFailed):
        other.quarantine.check(DOMAIN, DIGEST, "x")


def test_a_lost_reply_of_a_change() -> None:
    store = CountingStore()
    replica = Replica(store)
    store.loses_replies = True
    with pytest.raises(LogitportError, match="may have happened"):
        replica.register(ONE, "team/one", ANN, replace=False)
    store.loses_replies = False
    replica.register(ONE, "team/one", ANN, replace=False)
    assert len(seen(replica)) == 1


def test_a_store_without_a_reply_at_the_start() -> None:
    store = CountingStore()
    store.error = StoreError("redis is gone")
    with pytest.raises(LogitportError, match="redis is gone"):
        Replica(store)


def test_entries_without_a_valid_seal_are_ignored(
    open_store: Callable[[], Store], caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    replica = Replica(store)
    replica.register(ONE, "team/one", ANN, replace=False)
    key = Registration(serialized="", digest=DIGEST, owner="ann", shared=True, registered_at=0.0).key
    genuine = store.read([key])[key][1]
    forged: list[Any] = [
        Registration(serialized=ONE, digest=DIGEST, owner="bob", shared=True, registered_at=0.0),
        Binding(name="team/mine", digest=DIGEST, owner="ann"),
        Registration(serialized=ONE, digest=DIGEST, owner="ann", shared=True, registered_at=0.0),
        Binding(name="team/one", digest=DIGEST, owner="bob"),
    ]
    for record in forged:
        for value in (
            Seal().add(record.key, record.encode()),
            Seal(b"o" * 32).add(record.key, record.encode()),
            genuine,
        ):
            if (record.key, value) == (key, genuine):
                continue
            caplog.clear()
            store.commit([Write(record.key, value, store.index().revisions.get(record.key, ""))])
            replica.poll()
            replica.poll()
            assert caplog.text.count(f"the stored entry {record.key!r} is ignored") == 1
            with pytest.raises(NotFound):
                replica.resolve(common_pb2.Processor(digest=DIGEST), BOB)
    for unknown in ("team/mine", "team/one"):
        with pytest.raises(NotFound):
            replica.describe(unknown, ROOT)
    # A change replaces them.
    replica.register(ONE, "team/one", ANN, replace=False)
    replica.register(ONE, "team/mine", BOB, replace=False)
    fresh = Replica(store)
    assert seen(fresh) == seen(replica)
    assert {name for found in seen(fresh) for name in found[3]} == {"team/one", "team/mine"}


@pytest.mark.parametrize("key", ["processor/x/y", "name/x", "quarantine/x/y", "other", ""])
@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"name":"y","digest":"","owner":""}'])
def test_sealed_nonsense_is_ignored(key: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.commit([Write(key, SEAL.add(key, data))])
    assert not seen(Replica(store))
    assert "is ignored" in caplog.text


def test_a_long_entry_is_ignored_with_a_short_line(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.max_value_bytes = 100
    store.commit([Write("name/" + "x" * 10_000, bytes(101))])
    assert not seen(Replica(store))
    assert "is ignored: it has more than 100 bytes" in caplog.text
    assert len(caplog.text) < 500


def test_a_flood_of_registrations_does_not_delay_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing takes long. The deletion comes with the first part, and each later poll reads more."""
    monkeypatch.setattr("logitport_server.registry.catalog._READ_SECONDS", 0.0)
    monkeypatch.setattr("logitport_server.registry.catalog._BATCH", 1)
    store = MemoryStore()
    one, other = Replica(store), Replica(store)
    one.register(ONE, "team/one", ANN, replace=False, shared=True)
    while not seen(other):
        other.poll()
    for number in range(6):
        one.register(TWO, "", Principal(f"p{number}", frozenset({REGISTER})), replace=False)
    one.delete(DIGEST, ANN)
    other.poll()
    with pytest.raises(NotFound):
        other.describe("team/one", ROOT)
    assert len(seen(other)) == 1
    for _ in range(8):
        other.poll()
    assert seen(other) == seen(one)
    assert len(seen(one)) == 6


def test_a_change_that_conflicts_without_end() -> None:
    class Contended(MemoryStore):
        def commit(self, writes: Sequence[Write]) -> str:
            raise Conflict(writes[0].key)

    with pytest.raises(LogitportError, match="other servers change the same entries"):
        Replica(Contended()).register(ONE, "", ANN, replace=False)
