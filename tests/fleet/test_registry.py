"""Servers that share a store: a folder, and a Redis with TLS and a user of its own."""

from __future__ import annotations

import os
import re
import time
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
    LogitportError,
    NameTaken,
    NotFound,
    ProcessorFailed,
    Request,
    RowEdits,
)
from tests.end_to_end.engines import start_together
from tests.programs.runtime.build import repetition_penalty
from tests.server.registry.stores.redis_servers import RedisServer
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.certificates import Authority
    from tests.conftest import RunningServer

# The figure is printed. On a busy machine it is several times that of an idle one.
MAX_DELAY_SECONDS = 30.0
SHIPPED = "--enable-custom-logit-processor"
# Servers start faster without shipped code.
PENALTY = repetition_penalty(4).program
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


def refused(client: Client) -> bool:
    """Whether the processor is unknown to the client's server."""
    request = Request([1], processors=[("team/forces", {"token_id": 5})])
    failures = client.apply(torch.zeros(1, 8), [request], check=False).failures
    return [type(failure) for failure in failures.values()] == [NotFound]


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


class Delays:
    """How long changes take to reach the other server.

    Attributes:
        longest: in seconds.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    def wait_until(self, reached: Callable[[], object]) -> None:
        """Wait for a change that was made just now."""
        began = time.monotonic()
        wait_until(reached)
        self.longest = max(self.longest, time.monotonic() - began)


def test_two_servers_are_one_registry(
    start_server: Callable[..., RunningServer],
    options: tuple[str, ...],
    figure: Callable[[str, float], None],
    request: pytest.FixtureRequest,
) -> None:
    delays = Delays()
    servers = start_together(start_server, [(SHIPPED, "--quarantine-after", "1", *options)] * 2)
    with ExitStack() as stack:
        one, other = connected(stack, servers)
        ref = one.register(Forces, name="team/forces")
        with pytest.raises(NameTaken):
            other.register(Leaves, name="team/forces")
        delays.wait_until(lambda: not fails_with(NotFound, lambda: other.processor("team/forces")))
        assert other.processor("team/forces") == ref
        assert forced(other, 5) == 5

        other.register(Leaves, name="team/leaves")
        delays.wait_until(lambda: not fails_with(NotFound, lambda: one.processor("team/leaves")))
        assert crash(other).code != ProcessorFailed.QUARANTINED
        delays.wait_until(lambda: one.processor("team/leaves").quarantined)
        assert crash(one).code == ProcessorFailed.QUARANTINED
        one.servers()[0].unquarantine("team/leaves")
        delays.wait_until(lambda: not other.processor("team/leaves").quarantined)
        assert crash(other).code != ProcessorFailed.QUARANTINED

        one.delete(ref.digest)
        delays.wait_until(lambda: refused(other))
        assert fails_with(NotFound, lambda: other.processor("team/forces"))
    store = request.node.callspec.params["options"]
    figure(f"a change of the registry in a {store}: longest time until the other server has it (s)", delays.longest)
    assert delays.longest < MAX_DELAY_SECONDS
    assert [server.stop() for server in servers] == [0, 0]


def penalized(client: Client) -> bool:
    """Whether the server runs the registered program `PENALTY`."""
    request = Request([1], processors=[("team/penalty", {"penalty": 2.0})])
    return client.apply(torch.ones(1, 8), [request]).logits[0].tolist() == [1.0, 0.5, *[1.0] * 6]


def test_redis_is_killed(
    start_server: Callable[..., RunningServer], redis_server: RedisServer, redis_options: tuple[str, ...]
) -> None:
    server = start_server(*redis_options)
    with Client(server.target, timeout=300) as client:
        client.register(PENALTY, name="team/penalty")
        redis_server.kill()
        for _ in range(2):
            with pytest.raises(LogitportError, match=r"rediss://localhost:\d+/0 cannot be reached"):
                client.register(repetition_penalty(5).program)
            assert penalized(client)
            wait_until(lambda: "what is registered stays in use" in server.log.read_text())
        with pytest.raises(AssertionError, match=r"logitport: --store: rediss://localhost:\d+/0 cannot be reached"):
            start_server(*redis_options)
        redis_server.start()
        wait_until(lambda: not fails_with(LogitportError, lambda: client.register(repetition_penalty(5).program)))
        assert penalized(client)
    assert "PASSWORD" not in server.log.read_text()
    assert server.stop() == 0
