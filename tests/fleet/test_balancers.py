"""Sessions through HAProxy, nginx and Envoy, with the files of deploy/, while a server is killed, hangs or drains."""

from __future__ import annotations

import logging
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import grpc
import numpy as np
import pytest

from logitport import Client, Request, ServerUnavailable
from logitport_proto import processing_pb2, processing_pb2_grpc
from tests.certificates import Authority
from tests.conftest import COMMAND, free_address, run_server
from tests.fleet.balancers import BALANCERS, SERVER_NAME, run_balancer, server_options
from tests.waiting import stop, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.conftest import RunningServer

logger = logging.getLogger(__name__)

VOCAB = 512
ENGINES = 6
STEPS = 20
FORWARD_PASS_SECONDS = 0.005
NGRAMS = ("no_repeat_ngram", {"ngram_size": 2})
MAX_GAP_SECONDS = 5.0
# Longer than the time after which nginx ends a session without pings, and than that of three pings of Envoy.
IDLE_SECONDS = 8.0


class Engine:
    """A session with two requests, whose edits are compared with the result of the processor in this process.

    Attributes:
        steps: number of steps.
        wrong: number of rows with other edits than those of the whole history.
        longest: duration of the longest step, in seconds.
        error: the error that has ended the steps.
    """

    def __init__(self, client: Client, seed: int) -> None:
        # Not the local transport: on this machine, it would bypass the balancer.
        self.session = client.session(vocab_size=VOCAB, dtype="float32", transport="grpc")
        self._random = random.Random(seed)
        self._histories = [[self._random.randrange(VOCAB) for _ in range(20)] for _ in range(2)]
        self._handles = [self.session.add(Request(prompt, processors=[NGRAMS])) for prompt in self._histories]
        self._new: list[list[int]] = [[], []]
        self.steps = self.wrong = 0
        self.longest = 0.0
        self.error: Exception | None = None

    def generate(self, done: threading.Event) -> None:
        """Make steps until the event is set, or an error."""
        try:
            while not done.wait(FORWARD_PASS_SECONDS):
                self.step()
        except Exception as error:  # noqa: BLE001 - raised by `make_steps`
            self.error = error

    def step(self) -> None:
        logits = np.zeros((2, VOCAB), np.float32)
        began = time.monotonic()
        self.session.step(dict(zip(self._handles, self._new, strict=True))).apply(logits)
        self.longest = max(self.longest, time.monotonic() - began)
        for place, history in enumerate(self._histories):
            denied = {after for before, after in pairwise(history) if before == history[-1]}
            self.wrong += set(np.flatnonzero(np.isinf(logits[place])).tolist()) != denied
            token = self._random.choice(np.flatnonzero(~np.isinf(logits[place])).tolist())
            history.append(token)
            self._new[place] = [token]
        self.steps += 1


@contextmanager
def generating(client: Client) -> Iterator[list[Engine]]:
    """Run engines while the context lasts. All have made some steps at its beginning."""
    engines = [Engine(client, seed) for seed in range(ENGINES)]
    done = threading.Event()
    with ThreadPoolExecutor(ENGINES) as threads:
        for engine in engines:
            threads.submit(engine.generate, done)
        try:
            make_steps(engines)
            yield engines
        finally:
            done.set()
    for engine in engines:
        engine.session.close()


def make_steps(engines: list[Engine]) -> None:
    """Wait until all engines have made some more steps."""
    enough = [engine.steps + STEPS for engine in engines]

    def made() -> bool:
        for engine in engines:
            if engine.error is not None:
                raise engine.error
        return all(engine.steps >= steps for engine, steps in zip(engines, enough, strict=True))

    wait_until(made)


class Cluster:
    """Two servers on fixed addresses. One that has ended is started again.

    Args:
        stack: ends the servers.
        options: of both servers.
        credentials: of a channel to them; None if they have no TLS.
    """

    def __init__(self, stack: ExitStack, options: Sequence[str], credentials: grpc.ChannelCredentials | None) -> None:
        self._stack = stack
        self._options = options
        self._credentials = credentials
        self.servers = [self._start(free_address()) for _ in range(2)]

    def repair(self) -> None:
        """Continue or replace the servers that a test has stopped, and wait for the end of its sessions."""
        for place, server in enumerate(self.servers):
            server.process.send_signal(signal.SIGCONT)
            if server.process.poll() is not None:
                self.servers[place] = self._start(server.target)
        wait_until(lambda: not sum(self.sessions()))

    def sessions(self, servers: slice = slice(None)) -> list[int]:
        """Return the number of sessions of each server."""
        return [self._sessions_of(server) for server in self.servers[servers]]

    def _sessions_of(self, server: RunningServer) -> int:
        options = [("grpc.ssl_target_name_override", SERVER_NAME)]
        with (
            grpc.secure_channel(server.target, self._credentials, options)
            if self._credentials is not None
            else grpc.insecure_channel(server.target) as channel
        ):
            stub = processing_pb2_grpc.LogitProcessingStub(channel)
            return int(stub.GetLoad(processing_pb2.GetLoadRequest(), timeout=200).sessions)

    def _start(self, address: str) -> RunningServer:
        return self._stack.enter_context(run_server("--listen", address, *self._options))


@dataclass(frozen=True)
class Balanced:
    """A balancer and its servers.

    Attributes:
        target: the address of the balancer.
        cluster: the servers.
        checks_health: whether it calls the servers' health checks.
    """

    target: str
    cluster: Cluster
    checks_health: bool


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def cluster_for(authority: Authority) -> Iterator[Callable[[str], Cluster]]:
    """Returns the servers for a balancer: with TLS or without."""
    clusters: dict[bool, Cluster] = {}
    with ExitStack() as stack:

        def of(name: str) -> Cluster:
            options = server_options(name, authority)
            if bool(options) not in clusters:
                credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes()) if options else None
                clusters[bool(options)] = Cluster(stack, options, credentials)
            return clusters[bool(options)]

        yield of


@pytest.fixture(params=sorted(BALANCERS))
def balanced(
    request: pytest.FixtureRequest, cluster_for: Callable[[str], Cluster], authority: Authority, tmp_path: Path
) -> Iterator[Balanced]:
    cluster = cluster_for(request.param)
    cluster.repair()
    addresses = [server.target for server in cluster.servers]
    with run_balancer(request.param, tmp_path, addresses, authority) as target:
        yield Balanced(target, cluster, checks_health=request.param != "nginx")


def survive(balanced: Balanced, disturb: Callable[[RunningServer], object]) -> None:
    """Disturb a server that has sessions. They must continue on the other one, with the right edits."""
    with Client(balanced.target) as client, generating(client) as engines:
        had = balanced.cluster.sessions()
        assert sum(had) == ENGINES
        assert min(had) > 0
        disturb(balanced.cluster.servers[0])
        make_steps(engines)
        assert balanced.cluster.sessions(slice(1, None)) == [ENGINES]
        assert sum(engine.session.reconnects for engine in engines) >= had[0]
        assert sum(engine.wrong for engine in engines) == 0
        longest = max(engine.longest for engine in engines)
        logger.info("longest gap: %.2f s", longest)
        assert longest < MAX_GAP_SECONDS


def test_a_server_that_had_sessions_is_killed(balanced: Balanced) -> None:
    def kill(server: RunningServer) -> None:
        server.process.kill()
        server.process.wait()

    survive(balanced, kill)


def test_a_server_that_had_sessions_hangs(balanced: Balanced) -> None:
    survive(balanced, lambda server: stop(server.process))


def test_a_server_that_had_sessions_drains(balanced: Balanced) -> None:
    """Health checks notice that it drains: it would refuse new sessions. nginx has no health checks."""

    def opens_sessions() -> bool:
        with Client(balanced.target) as client, ExitStack() as stack:
            for _ in range(ENGINES):
                try:
                    stack.enter_context(client.session(vocab_size=VOCAB, transport="grpc", reconnect_seconds=0))
                except ServerUnavailable:
                    return False
        return True

    def drain(server: RunningServer) -> None:
        if balanced.checks_health:
            command = [COMMAND, "drain", server.target, "--timeout-seconds", "0"]
            subprocess.run(command, capture_output=True, timeout=200, check=False)
            wait_until(opens_sessions)
        server.process.terminate()

    survive(balanced, drain)
    assert balanced.cluster.servers[0].process.wait(200) == 0


def test_sessions_of_idle_engines_stay(balanced: Balanced) -> None:
    """Keepalive pings are neither too rare for nginx, nor too frequent for the servers behind Envoy."""
    with Client(balanced.target) as client:
        engines = [Engine(client, seed) for seed in range(2)]
        for engine in engines:
            engine.step()
        time.sleep(IDLE_SECONDS)
        for engine in engines:
            engine.step()
            assert engine.session.reconnects == engine.wrong == 0
            engine.session.close()
