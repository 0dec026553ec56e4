"""Servers that share a store: a folder, and a Redis with TLS and a user of its own."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import (
    Client,
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    InternalError,
    LogitportError,
    NameTaken,
    ProcessorQuarantined,
    Request,
    RowEdits,
    UnknownProcessor,
)
from tests.server.registry.stores.redis_servers import RedisServer
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer
    from tests.certificates import Authority

SHIPPED = "--enable-custom-logit-processor"
OPERATING_PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


class Forces(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.force(request.params["token_id"])


class Leaves(CustomLogitProcessor):
    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        os._exit(1)


@pytest.fixture
def redis_server(tmp_path: Path, authority: Authority) -> Iterator[RedisServer]:
    (line,) = re.findall("^user logitport .*", OPERATING_PAGE.read_text(), re.MULTILINE)
    certificate = authority.issue_server("redis")
    tls = ("--tls-cert-file", certificate.cert, "--tls-key-file", certificate.key, "--tls-auth-clients", "no")
    server = RedisServer(tmp_path, *map(str, tls), "--user", *line.split()[1:], tls=True)
    yield server
    server.kill()


@pytest.fixture
def redis_options(redis_server: RedisServer, authority: Authority, tmp_path: Path) -> tuple[str, ...]:
    key = tmp_path / "store.key"
    key.write_text("k" * 32)
    url = f"rediss://logitport:PASSWORD@localhost:{redis_server.port}/0?ssl_ca_certs={authority.ca}"
    return "--store", url, "--store-key", str(key)


@pytest.fixture(params=["folder", "redis"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    if request.param == "folder":
        return "--store", str(tmp_path / "store")
    options: tuple[str, ...] = request.getfixturevalue("redis_options")
    return options


def connected(stack: ExitStack, servers: list[RunningServer]) -> list[Client]:
    return [stack.enter_context(Client(server.target, timeout=300)) for server in servers]


def forced(client: Client, token_id: int) -> int:
    request = Request([1], processors=[("team/forces", {"token_id": token_id})])
    return int(client.apply(torch.zeros(1, 8), [request]).logits.argmax())


def crash(client: Client) -> LogitportError:
    request = Request([1], processors=[("team/leaves", {})])
    return client.apply(torch.zeros(1, 8), [request], check=False).failures[0]


def fails_with(error: type[LogitportError], call: Callable[[], object]) -> bool:
    try:
        call()
    except error:
        return True
    except LogitportError:
        return False
    return False


def test_two_servers_are_one_registry(start_server: Callable[..., RunningServer], options: tuple[str, ...]) -> None:
    servers = [start_server(SHIPPED, "--quarantine-after", "1", *options) for _ in range(2)]
    with ExitStack() as stack:
        one, other = connected(stack, servers)
        ref = one.register(Forces, name="team/forces")
        with pytest.raises(NameTaken):
            other.register(Leaves, name="team/forces")
        wait_until(lambda: not fails_with(UnknownProcessor, lambda: other.processor("team/forces")))
        assert other.processor("team/forces") == ref
        assert forced(other, 5) == 5

        other.register(Leaves, name="team/leaves")
        wait_until(lambda: not fails_with(UnknownProcessor, lambda: one.processor("team/leaves")))
        assert not isinstance(crash(other), ProcessorQuarantined)
        wait_until(lambda: one.processor("team/leaves").quarantined)
        assert isinstance(crash(one), ProcessorQuarantined)
        one.unquarantine("team/leaves")
        wait_until(lambda: not other.processor("team/leaves").quarantined)
        assert not isinstance(crash(other), ProcessorQuarantined)

        one.delete(ref.digest)
        wait_until(lambda: fails_with(UnknownProcessor, lambda: other.processor("team/forces")))
    assert [server.stop() for server in servers] == [0, 0]


def test_a_server_that_is_killed(start_server: Callable[..., RunningServer], options: tuple[str, ...]) -> None:
    servers = [start_server(SHIPPED, *options) for _ in range(2)]
    with ExitStack() as stack:
        one, other = connected(stack, servers)
        one.register(Forces, name="team/forces")
        servers[0].process.kill()
        servers[0].process.wait()
        other.register(Forces, name="team/forces:2")
        (again,) = connected(stack, [start_server(SHIPPED, *options)])
        assert forced(again, 3) == 3
        assert again.processor("team/forces:2").names == ("team/forces", "team/forces:2")


def test_redis_is_killed(
    start_server: Callable[..., RunningServer], redis_server: RedisServer, redis_options: tuple[str, ...]
) -> None:
    server = start_server(SHIPPED, *redis_options)
    with Client(server.target, timeout=300) as client:
        client.register(Forces, name="team/forces")
        redis_server.kill()
        for _ in range(2):
            with pytest.raises(
                InternalError, match=r"store cannot be used: rediss://localhost:\d+/0 cannot be reached"
            ):
                client.register(Leaves)
            assert forced(client, 5) == 5
            wait_until(lambda: "what is registered stays in use" in server.log.read_text())
        with pytest.raises(AssertionError, match=r"logitport: --store: rediss://localhost:\d+/0 cannot be reached"):
            start_server(SHIPPED, *redis_options)
        redis_server.start()
        wait_until(lambda: not fails_with(InternalError, lambda: client.register(Leaves)))
        assert forced(client, 5) == 5
    assert "PASSWORD" not in server.log.read_text()
    assert server.stop() == 0
