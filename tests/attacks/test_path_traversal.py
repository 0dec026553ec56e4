"""Names that are paths, sent to a server: none is bound or looked up, and nothing is read or written elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, InvalidArgument, NotFound, Request, RequestsFailed
from tests.toy_processors import Unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_proto import common_pb2

# tests/server/registry/test_hostile_names.py has all of them.
NAMES = ["../../etc/passwd", "team/x\0.json"]


@pytest.fixture
def client(attacked: Any) -> Iterator[Client]:
    with Client(attacked.target) as connected:
        yield connected


@pytest.fixture(autouse=True)
def untouched(attacked: Any) -> Iterator[None]:
    """Check that the server's own folders are unchanged."""
    folder = Path(f"/proc/{attacked.process.pid}/cwd")
    before = sorted(os.listdir(folder))
    yield
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("name", NAMES)
def test_no_such_name_is_bound(client: Client, name: str) -> None:
    with pytest.raises(InvalidArgument):
        client.register(Unchanged, name=name)
    assert all(name not in ref.names for ref in client.processors())


@pytest.mark.parametrize("name", NAMES)
def test_no_such_name_is_looked_up(client: Client, name: str) -> None:
    for call in (client.processor, client.delete):
        with pytest.raises(NotFound):
            call(name)
    for by in ("name", "digest", "builtin"):
        request = Request(processors=[("thinking_budget", {})]).to_proto()
        setattr(request.processors[0].processor, by, name)
        with pytest.raises(RequestsFailed) as raised:
            client.apply(np.zeros((1, 8), np.float32), [_AsIs(request)])
        (error,) = raised.value.result.failures.values()
        assert isinstance(error, NotFound)


@pytest.mark.slow
def test_nothing_is_written_outside_the_store(start_server: Any, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "store"
    options = ("--enable-custom-logit-processor", "--store", str(folder))
    server = start_server(*options)
    with Client(server.target) as client:
        for name in NAMES:
            with pytest.raises(InvalidArgument):
                client.register(Unchanged, name=name)
        client.register(Unchanged, name="team/idle:v1")
    server.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in folder.parent.iterdir()] == ["store"]
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "registry.db"], "a client chose a file's name"


class _AsIs(Request):
    """A request that is already a message."""

    def __init__(self, message: common_pb2.Request) -> None:
        super().__init__()
        object.__setattr__(self, "to_proto", lambda: message)
