"""Sessions through Envoy, with the file of deploy/, while a server is killed, hangs or drains."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from logitport import Client, ServerUnavailable
from tests.conftest import COMMAND, free_address, run_server
from tests.end_to_end.engines import VOCAB, Engine, generating, kill, sessions_of
from tests.fleet.balancers import run_envoy
from tests.fleet.conftest import go_on
from tests.waiting import resume, stop, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

ENGINES = 6
STEPS = 20
FORWARD_PASS_SECONDS = 0.02
# The figure is printed. On a busy machine it is several times that of an idle one.
MAX_GAP_SECONDS = 30.0
# Longer than three pings of Envoy.
IDLE_SECONDS = 8.0


class Cluster:
    """Two servers on fixed addresses. One that has ended is started again.

    Args:
        stack: ends the servers.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.servers = [self._start(free_address()) for _ in range(2)]

    def repair(self) -> None:
        """Continue or replace the servers that a test has stopped, and wait for the end of its sessions."""
        for place, server in enumerate(self.servers):
            resume(server.process)
            if server.process.poll() is not None:
                self.servers[place] = self._start(server.target)
        wait_until(lambda: not sum(self.sessions()))

    def sessions(self, servers: slice = slice(None)) -> list[int]:
        """Return the number of sessions of each server."""
        return [sessions_of(server)[0] for server in self.servers[servers]]

    def _start(self, address: str) -> RunningServer:
        return self._stack.enter_context(run_server("--listen", address))


@dataclass(frozen=True)
class Balanced:
    """A balancer and its servers.

    Attributes:
        target: the address of the balancer.
        cluster: the servers.
    """

    target: str
    cluster: Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


@pytest.fixture
def balanced(cluster: Cluster, tmp_path: Path) -> Iterator[Balanced]:
    cluster.repair()
    with run_envoy(tmp_path, [server.target for server in cluster.servers]) as target:
        yield Balanced(target, cluster)


@pytest.fixture
def survive(balanced: Balanced, figure: Callable[[str, float], None]) -> Callable[..., None]:
    """Disturbs a server that has sessions. They must continue on the other one, with the right edits."""

    def disturb_one(what: str, disturb: Callable[[RunningServer], object]) -> None:
        with Client(balanced.target) as client:
            # Not the local transport: on this machine, it would bypass the balancer.
            engines = [Engine(client, seed, "grpc") for seed in range(ENGINES)]
            with generating(engines, FORWARD_PASS_SECONDS):
                go_on(engines, STEPS)
                had = balanced.cluster.sessions()
                assert sum(had) == ENGINES
                assert min(had) > 0
                disturb(balanced.cluster.servers[0])
                go_on(engines, STEPS)
                assert balanced.cluster.sessions(slice(1, None)) == [ENGINES]
            assert sum(engine.session.reconnects for engine in engines) >= had[0]
            assert [engine.wrong for engine in engines] == [0] * ENGINES
            longest = max(engine.longest_step for engine in engines)
            figure(f"longest step behind Envoy, a server {what} (s)", longest)
            assert longest < MAX_GAP_SECONDS

    return disturb_one


def test_a_server_that_had_sessions_is_killed(survive: Callable[..., None]) -> None:
    survive("killed", kill)


def test_a_server_that_had_sessions_hangs(survive: Callable[..., None]) -> None:
    survive("stopped", lambda server: stop(server.process))


def test_a_server_that_had_sessions_drains(balanced: Balanced, survive: Callable[..., None]) -> None:
    """Health checks notice that it drains: it would refuse new sessions."""

    def opens_sessions() -> bool:
        with Client(balanced.target) as client, ExitStack() as stack:
            for _ in range(ENGINES):
                try:
                    stack.enter_context(client.session(vocab_size=VOCAB, transport="grpc", reconnect_seconds=0))
                except ServerUnavailable:
                    return False
        return True

    def drain(server: RunningServer) -> None:
        command = [COMMAND, "drain", server.target, "--timeout-seconds", "0"]
        subprocess.run(command, capture_output=True, timeout=200, check=True)
        wait_until(opens_sessions)
        server.process.terminate()

    survive("drained", drain)
    assert balanced.cluster.servers[0].process.wait(200) == 0


def test_sessions_of_idle_engines_stay(balanced: Balanced) -> None:
    """Envoy's pings are not too frequent for the servers."""
    with Client(balanced.target) as client:
        engines = [Engine(client, seed, "grpc") for seed in range(2)]
        for engine in engines:
            engine.step()
        time.sleep(IDLE_SECONDS)
        for engine in engines:
            engine.step()
            assert engine.session.reconnects == engine.wrong == 0
            engine.session.close()
