"""Names that are paths: none is bound, none is found outside the registry, and nothing is written to its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument, NotFound
from logitport_proto import common_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.stores.sqlite import SqliteStore
from tests.toy_processors import Unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = [
    *("../x/y", "../../etc/passwd", "team/../x", "team/..", "team/.", "team/x/..", "./team/x", "team//x", "team/x/"),
    *("/team/x", "/etc/passwd", "//team/x", "~/x", "team/~", "team/$HOME", "team/x\0", "\0team/x", "team/x\0.json"),
    *("team\\x", "..\\x\\y", "C:/x", "C:\\x", "\\\\host\\share\\x", "team/x:../y", "team/x:/y", "team/x:", "team/:v"),
    *("file:///etc/passwd", "http://host/x", "team/x?y", "team/x#y", "team/%2e%2e/x", "team/..%2fx", "team/x;y"),
    "team/*",
    *("team/x\n", "team/\nx", "team/x\r", " team/x", "team/x ", "team/ x", "-team/x", "team/-x", ".team/x", "team/.x"),
    *("Team/x", "team/X", "t\u00e9am/x", "team/\uff0e\uff0e/x", "team/\u2025/x", "\u0430team/x", "team/x\u202e"),
    "team\u2215x",
    *("team/x:v1:v2", "team", "x", "/", "", ".", "..", "a/" * 64 + "a", "team/" + "x" * 124),
    *(":x", "0123456789abcdef" * 4),
]


IDLE = Unchanged.to_str()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[LocalRegistry]:
    """A registry with a store. After the test, all files below its parent folder are those that it began with."""
    policy = PayloadPolicy(allow_shipped=True, max_bytes=1 << 20)
    store = SqliteStore(tmp_path / "deep" / "store")
    kept = LocalRegistry(policy, max_registered=8, max_owned=8, store=store)
    kept.register(IDLE, "team/idle", replace=False)
    before = sorted(tmp_path.rglob("*"))
    yield kept
    assert sorted(tmp_path.rglob("*")) == before
    store.close()


def test_no_such_name_is_bound_or_looked_up(registry: LocalRegistry) -> None:
    for name in NAMES:
        if name:
            with pytest.raises(InvalidArgument, match="namespace/name"):
                registry.register(IDLE, name, replace=False)
        for call in (registry.describe, registry.delete):
            with pytest.raises(NotFound):
                call(name)
        for by in ("name", "digest", "builtin"):
            with pytest.raises(NotFound):
                registry.resolve(common_pb2.Processor(**{by: name}))
    assert [[*info.names] for info in registry.describe_all() if not info.builtin] == [["team/idle"]]
