"""Registration and lookup of processors by name and digest, and across restarts of the server."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from logitport import AccessDenied, InvalidArgument, LimitExceeded, NameTaken, NotFound, PayloadError, payload
from logitport_builtins import BUILTINS
from logitport_proto import common_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.executors.inline import InlineExecutor
from logitport_server.registry.loader import PayloadLoader
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.stored_records import Binding, Registration
from logitport_server.registry.stores.base import Write
from logitport_server.registry.stores.seal import Seal
from logitport_server.registry.stores.sqlite import SqliteStore
from logitport_session.trust.principals import ADMIN, APPLY, REGISTER, Party, Principal, TrustDomain
from tests.toy_processors import AddOne, Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Restart = Callable[..., LocalRegistry]

ONE, TWO = Unchanged.to_str(), AddOne.to_str()


def make_registry(
    *, allow: bool = True, programs: bool = True, max_registered: int = 8, max_owned: int = 8, max_bytes: int = 1 << 20
) -> LocalRegistry:
    policy = PayloadPolicy(allow_shipped=allow, allow_programs=programs, max_bytes=max_bytes)
    return LocalRegistry(policy, max_registered=max_registered, max_owned=max_owned)


def named(**by: str) -> common_pb2.Processor:
    return common_pb2.Processor(**by)


def test_the_same_payload_is_registered_once() -> None:
    registry = make_registry()
    first = registry.register(ONE, "", replace=False)
    assert (first.class_name, first.dialect, first.builtin) == ("Unchanged", "sglang", False)
    assert (first.python, bool(first.dill)) == (f"{sys.version_info.major}.{sys.version_info.minor}", True)
    assert first.size_bytes == len(json.loads(ONE)["callable"]) // 2
    again = registry.register(ONE, "team/one", replace=False)
    without_labels = registry.register(json.dumps({"callable": json.loads(ONE)["callable"]}), "team/uno", replace=False)
    assert first.digest == again.digest == without_labels.digest
    assert list(without_labels.names) == ["team/one", "team/uno"]
    assert without_labels.registered_at == first.registered_at > 0
    assert len(registry.describe_all()) == len(BUILTINS) + 1


@pytest.mark.parametrize("name", ["a/b", "team/ban-french:v2", "a/b/c:1.0", "0/_x".replace("_", "0"), "a/" + "b" * 126])
def test_names(name: str) -> None:
    registry = make_registry()
    digest = registry.register(ONE, name, replace=False).digest
    assert registry.describe(name).digest == digest
    assert registry.resolve(named(name=name)).key == digest


def test_a_name_is_taken_until_it_is_replaced() -> None:
    registry = make_registry()
    one = registry.register(ONE, "team/x", replace=False).digest
    assert registry.register(ONE, "team/x", replace=False).digest == one
    with pytest.raises(NameTaken, match=rf"'team/x' is bound to Unchanged \(sha256:{one[:12]}\)"):
        registry.register(TWO, "team/x", replace=False)
    assert len(registry.describe_all()) == len(BUILTINS) + 1, "the refused one is registered"
    two = registry.register(TWO, "team/x", replace=True)
    assert registry.resolve(named(name="team/x")).key == two.digest
    assert list(registry.describe(one).names) == []


def test_the_registry_is_bounded() -> None:
    registry = make_registry(max_registered=1)
    registry.register(ONE, "", replace=False)
    registry.register(ONE, "team/again", replace=False)
    with pytest.raises(LimitExceeded, match=r"has 1 processors, its limit: delete some"):
        registry.register(TWO, "", replace=False)
    registry.delete(registry.register(ONE, "", replace=False).digest)
    registry.register(TWO, "", replace=False)


def test_built_ins_are_listed_first_then_by_name() -> None:
    registry = make_registry()
    registry.register(TWO, "b/two", replace=False)
    registry.register(ONE, "a/one", replace=False)
    listed = registry.describe_all()
    assert [next(iter(info.names)) for info in listed] == [*sorted(BUILTINS), "a/one", "b/two"]
    assert all(info.class_name and info.dialect for info in listed)


def test_deleting_a_name_keeps_the_digest() -> None:
    registry = make_registry()
    digest = registry.register(ONE, "team/x", replace=False).digest
    assert registry.delete("team/x") == ["team/x"]
    assert list(registry.describe(digest).names) == []
    with pytest.raises(NotFound):
        registry.resolve(named(name="team/x"))
    assert registry.resolve(named(digest=digest)).key == digest


def test_deleting_a_digest_deletes_its_names() -> None:
    registry = make_registry()
    registry.register(ONE, "team/y", replace=False)
    digest = registry.register(ONE, "team/x", replace=False).digest
    assert registry.delete(digest) == ["team/x", "team/y"]
    for gone in (named(digest=digest), named(name="team/x"), named(name="team/y")):
        with pytest.raises(NotFound, match=r"register it first.* without --store: .* before its start is lost"):
            registry.resolve(gone)


def test_built_ins_cannot_be_deleted() -> None:
    with pytest.raises(InvalidArgument, match="built-ins cannot be deleted"):
        make_registry().delete("thinking_budget")


@pytest.mark.parametrize("processor", ["", "unknown", "team/unknown", "0" * 64])
def test_unknown_processors(processor: str) -> None:
    registry = make_registry()
    for call in (registry.describe, registry.delete, registry.unquarantine):
        with pytest.raises(NotFound, match=f"'{processor}'"):
            call(processor)
    for by in ("builtin", "name", "digest"):
        with pytest.raises(NotFound):
            registry.resolve(named(**{by: processor}))


def test_a_call_without_a_processor() -> None:
    with pytest.raises(InvalidArgument, match="set one of builtin, name, digest, payload"):
        make_registry().resolve(common_pb2.Processor())


def test_the_error_of_an_unknown_built_in_lists_the_installed_ones() -> None:
    with pytest.raises(NotFound, match=r"'thinking_bugdet'; installed are .*thinking_budget"):
        make_registry().resolve(named(builtin="thinking_bugdet"))


def test_names_and_digests_are_separate() -> None:
    registry = make_registry()
    digest = registry.register(ONE, "team/x", replace=False).digest
    for wrong in (named(name=digest), named(digest="team/x"), named(builtin="team/x")):
        with pytest.raises(NotFound):
            registry.resolve(wrong)


@pytest.mark.parametrize("serialized", ["not JSON", "[]", "{}", '{"callable": "zz"}', '{"callable": "00"}', ""])
def test_malformed_payloads(serialized: str) -> None:
    registry = make_registry()
    with pytest.raises(PayloadError):
        registry.register(serialized, "", replace=False)
    with pytest.raises(PayloadError):
        registry.resolve(named(payload=serialized))


def test_code_of_another_python_is_not_registered() -> None:
    with pytest.raises(PayloadError, match=r"3\.9"):
        make_registry().register(json.dumps({**json.loads(ONE), "python": "3.9"}), "", replace=False)


@pytest.mark.parametrize("serialized", [ONE, "not JSON"])
def test_without_the_option_no_payload_is_parsed(serialized: str) -> None:
    registry = make_registry(allow=False, programs=False)
    with pytest.raises(PayloadError, match="--enable-custom-logit-processor"):
        registry.register(serialized, "", replace=False)
    with pytest.raises(PayloadError):
        registry.resolve(named(payload=serialized))
    assert registry.resolve(named(builtin="disallowed_tokens")).installed is BUILTINS["disallowed_tokens"]


@pytest.mark.slow
def test_registration_and_lookup_do_not_unpickle() -> None:
    """Unpickling this payload would end the process."""
    code = """
import json, pickle, sys
from logitport_proto import common_pb2
from logitport_server.registry.policy import PayloadPolicy
from logitport_session.trust.principals import ADMIN, APPLY, REGISTER, Principal
from logitport_server.registry.stores.sqlite import SqliteStore
from logitport_runner.local_registry import LocalRegistry

class Bomb:
    def __reduce__(self):
        import os
        return os._exit, (3,)

serialized = json.dumps({"callable": pickle.dumps(Bomb()).hex()})
registry = LocalRegistry(PayloadPolicy(allow_shipped=True, max_bytes=1 << 20), max_registered=8, max_owned=8)
digest = registry.register(serialized, "team/bomb", replace=False).digest
for processor in ({"payload": serialized}, {"name": "team/bomb"}, {"digest": digest}):
    assert registry.resolve(common_pb2.Processor(**processor)).key == digest
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "alive", done.stderr


def test_many_threads() -> None:
    registry = make_registry(max_registered=2)

    def use(at: int) -> None:
        for turn in range(50):
            name = f"team/x{(at + turn) % 5}"
            registry.register(ONE if at % 2 else TWO, name, replace=True)
            registry.describe_all()
            with suppress(NotFound):  # another thread has deleted it
                registry.describe(name)
                registry.resolve(named(name=name))
                registry.delete(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    assert len(registry.describe_all()) == len(BUILTINS) + 2


ALICE, BOB = (Principal(name, frozenset({APPLY, REGISTER})) for name in ("alice", "bob"))
OPERATOR = Principal("operator", frozenset({ADMIN}))
ENGINE = Principal("engine", frozenset({APPLY}))


def test_a_name_belongs_to_the_principal_that_bound_it_first() -> None:
    registry = make_registry()
    digest = registry.register(ONE, "team/x", ALICE, replace=False).digest
    for serialized in (ONE, TWO):
        for replace in (False, True):
            with pytest.raises(NameTaken, match="'team/x' belongs to another principal") as raised:
                registry.register(serialized, "team/x", BOB, replace=replace)
            assert digest not in str(raised.value)
            assert "alice" not in str(raised.value)
    assert len(registry.describe_all(OPERATOR)) == len(BUILTINS) + 1
    registry.delete("team/x", ALICE)
    assert registry.register(TWO, "team/x", BOB, replace=False).owner == "bob"


def test_shared_processors_are_visible_to_all_but_deleted_by_their_owner_only() -> None:
    registry = make_registry()
    digest = registry.register(ONE, "alice/x", ALICE, replace=False, shared=True).digest
    for by in (named(name="alice/x"), named(digest=digest)):
        assert registry.resolve(by, BOB).domain == TrustDomain("alice", Party("bob"))
    assert registry.describe("alice/x", BOB).shared
    assert registry.describe_all(BOB)[-1].digest == digest
    for processor in ("alice/x", digest):
        with pytest.raises(AccessDenied, match=r"'bob' .* scope 'admin'"):
            registry.delete(processor, BOB)
    registry.register(ONE, "", ALICE, replace=False)
    with pytest.raises(NotFound):
        registry.resolve(named(digest=digest), BOB)


def test_own_registrations_come_before_shared_ones() -> None:
    registry = make_registry()
    digest = registry.register(ONE, "alice/x", ALICE, replace=False, shared=True).digest
    registry.register(ONE, "", BOB, replace=False)
    assert registry.resolve(named(digest=digest), BOB).domain == TrustDomain("bob", Party("bob"))
    assert registry.resolve(named(name="alice/x"), BOB).domain == TrustDomain("alice", Party("bob"))


def test_an_admin_can_see_and_delete_everything_but_not_use_it() -> None:
    registry = make_registry()
    digest = registry.register(ONE, "alice/x", ALICE, replace=False).digest
    registry.register(ONE, "bob/x", BOB, replace=False)
    registry.register(TWO, "bob/y", BOB, replace=False)
    assert len(registry.describe_all(OPERATOR)) == len(BUILTINS) + 3
    assert registry.describe("bob/y", OPERATOR).owner == "bob"
    with pytest.raises(NotFound):
        registry.resolve(named(name="bob/y"), OPERATOR)
    assert registry.delete("bob/y", OPERATOR) == ["bob/y"]
    assert registry.delete(digest, OPERATOR) == ["alice/x", "bob/x"]


def test_payloads_in_requests_need_the_scope() -> None:
    registry = make_registry()
    source = registry.resolve(named(payload=ONE), ALICE, "tenant")
    assert source.domain == TrustDomain("alice", Party("alice", "tenant"), source.key)
    with pytest.raises(AccessDenied, match=r"'engine' .* scope 'register'"):
        registry.resolve(named(payload="not JSON"), ENGINE)


def test_the_processors_of_a_principal_are_limited() -> None:
    registry = make_registry(max_registered=3, max_owned=1)
    registry.register(ONE, "", ALICE, replace=False)
    with pytest.raises(LimitExceeded, match=r"'alice' .* --max-processors-per-principal"):
        registry.register(TWO, "", ALICE, replace=False)
    registry.register(TWO, "", BOB, replace=False)


def test_the_names_of_a_principal_are_limited() -> None:
    registry = make_registry(max_registered=9, max_owned=2)
    for name in ("alice/a", "alice/b", "alice/b"):
        registry.register(ONE, name, ALICE, replace=False)
    with pytest.raises(LimitExceeded, match=r"'alice' .* 2 names"):
        registry.register(ONE, "alice/c", ALICE, replace=False)
    registry.register(TWO, "alice/b", ALICE, replace=True)
    registry.delete("alice/a", ALICE)
    registry.register(ONE, "alice/c", ALICE, replace=False)
    registry.register(ONE, "bob/c", BOB, replace=False)


def test_a_payload_that_is_too_long() -> None:
    registry = make_registry(max_bytes=len(ONE))
    registry.register(ONE, "", replace=False)
    for refused in (
        lambda: registry.register(ONE + " ", "", replace=False),
        lambda: registry.resolve(named(payload=ONE + " ")),
    ):
        with pytest.raises(LimitExceeded, match=f"{len(ONE)}: .* --max-payload-bytes"):
            refused()


def test_a_name_stays_reserved_while_its_processor_is_refused(tmp_path: Path) -> None:
    def opened(max_bytes: int) -> LocalRegistry:
        store = SqliteStore(tmp_path / "store")
        stores.callback(store.close)
        return LocalRegistry(
            PayloadPolicy(allow_shipped=True, max_bytes=max_bytes), max_registered=8, max_owned=8, store=store
        )

    with ExitStack() as stores:
        opened(1 << 20).register(ONE, "team/x", ALICE, replace=False, shared=True)
    with ExitStack() as stores:
        stricter = opened(len(ONE) - 1)
        with pytest.raises(NotFound):
            stricter.resolve(named(name="team/x"), ALICE)
        smaller = json.dumps({"callable": b"\x80\x04N.".hex()})
        for replace in (False, True):
            with pytest.raises(NameTaken, match="belongs to another principal"):
                stricter.register(smaller, "team/x", BOB, replace=replace)
    with ExitStack() as stores:
        again = opened(1 << 20)
        assert again.resolve(named(name="team/x"), BOB).domain == TrustDomain("alice", Party("bob"))
        again.delete("team/x", ALICE)
        assert again.register(TWO, "team/x", BOB, replace=False).owner == "bob"


ONE, TWO = Unchanged.to_str(), AddOne.to_str()
ANN, BOB = (Principal(name, frozenset({APPLY, REGISTER})) for name in ("ann", "bob"))


@pytest.fixture
def restart(tmp_path: Path) -> Iterator[Restart]:
    """Starts a registry on the same store as the one before."""
    stores: list[SqliteStore] = []

    def start(*, allow: bool = True) -> LocalRegistry:
        if stores:
            stores.pop().close()
        stores.append(SqliteStore(tmp_path / "store"))
        policy = PayloadPolicy(allow_shipped=allow, max_bytes=1 << 20)
        return LocalRegistry(policy, max_registered=8, max_owned=8, store=stores[0])

    yield start
    for store in stores:
        store.close()


def test_a_payload_of_another_digest_is_not_loaded(
    restart: Restart, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest = restart().register(ONE, "team/one", replace=False).digest
    forged = Registration(serialized=TWO, digest=digest, owner="", shared=False, registered_at=0.0)
    store = SqliteStore(tmp_path / "store")
    ((key, revision),) = [item for item in store.index().revisions.items() if item[0] == forged.key]
    store.commit([Write(key, Seal().add(key, forged.encode()), revision)])
    store.close()
    assert len(restart().describe_all()) == len(BUILTINS)
    assert f"{digest} was not loaded: its digest is" in caplog.text


def test_only_a_server_without_a_store_names_the_store_as_the_cause_of_a_lost_name(restart: Restart) -> None:
    for registry, has_advice in ((make_registry(), True), (restart(), False)):
        with pytest.raises(NotFound, match="register it first") as caught:
            registry.resolve(named(name="team/x"))
        assert ("start the server with --store" in str(caught.value)) == has_advice


@pytest.mark.parametrize(
    ("serialized", "error", "message"),
    [
        (json.dumps({"program": "00ff"}), InvalidArgument, "are not a program"),
        (json.dumps({**json.loads(ONE), "python": "3.9"}), PayloadError, r"3\.9"),
    ],
)
def test_what_this_server_cannot_run_is_refused_when_it_is_used(
    restart: Restart, tmp_path: Path, serialized: str, error: type[Exception], message: str
) -> None:
    """Another server has accepted it. To check it at the start would delay the start, and the calls of others."""
    restart().register(TWO, "team/two", replace=False)
    digest = payload.unwrap(serialized).digest
    stored = (
        Registration(serialized=serialized, digest=digest, owner="", shared=False, registered_at=0.0),
        Binding(name="team/one", digest=digest, owner=""),
    )
    store = SqliteStore(tmp_path / "store")
    store.commit([Write(record.key, Seal().add(record.key, record.encode()), "") for record in stored])
    store.close()
    registry = restart()
    assert registry.describe("team/one").digest == digest
    with pytest.raises(error, match=message):
        InlineExecutor(PayloadLoader(1)).load(registry.resolve(common_pb2.Processor(name="team/one")))
    assert registry.resolve(common_pb2.Processor(name="team/two"))
