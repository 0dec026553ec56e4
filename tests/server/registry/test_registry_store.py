"""The registry across restarts of the server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument, NotFound, PayloadError, payload
from logitport_builtins import BUILTINS
from logitport_proto import common_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.executors.inline import InlineExecutor
from logitport_server.registry.loader import PayloadLoader
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.records import Binding, Registration
from logitport_server.registry.stores.base import Write
from logitport_server.registry.stores.seal import Seal
from logitport_server.registry.stores.sqlite import SqliteStore
from logitport_session.trust.principals import APPLY, REGISTER, Party, Principal, TrustDomain
from tests.toy_processors import AddOne, Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Restart = Callable[..., LocalRegistry]


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


def test_registrations_and_names_survive(restart: Restart) -> None:
    before = restart()
    before.register(ONE, "team/one", ANN, replace=False, shared=True)
    before.register(ONE, "team/uno", BOB, replace=False)
    before.register(TWO, "team/x", ANN, replace=False)
    before.register(ONE, "team/x", ANN, replace=True, shared=True)
    after = restart()
    for principal in (ANN, BOB):
        assert after.describe_all(principal) == before.describe_all(principal)
    source = after.resolve(common_pb2.Processor(name="team/x"), BOB)
    assert source == before.resolve(common_pb2.Processor(name="team/x"), BOB)
    assert source.domain == TrustDomain("ann", Party("bob"))
    with pytest.raises(NotFound):
        after.describe("team/uno", ANN)


def test_deletions_survive(restart: Restart) -> None:
    before = restart()
    digest = before.register(ONE, "team/one", replace=False).digest
    before.register(ONE, "team/uno", replace=False)
    before.register(TWO, "team/two", replace=False)
    before.delete("team/one")
    before.delete("team/two")
    assert [list(info.names) for info in restart().describe_all()[len(BUILTINS) :]] == [[], ["team/uno"]]
    restart().delete(digest)
    assert [list(info.names) for info in restart().describe_all()[len(BUILTINS) :]] == [[]]


def test_refused_processors_are_not_loaded_but_stay_stored(restart: Restart, caplog: pytest.LogCaptureFixture) -> None:
    restart().register(ONE, "team/one", replace=False)
    assert len(restart(allow=False).describe_all()) == len(BUILTINS)
    assert "was not loaded: this server does not accept shipped processors" in caplog.text
    assert "the stored name team/one was not loaded" in caplog.text
    assert restart().describe("team/one").names == ["team/one"]


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
        InlineExecutor(PayloadLoader(1)).host(registry.resolve(common_pb2.Processor(name="team/one")))
    assert registry.resolve(common_pb2.Processor(name="team/two"))
