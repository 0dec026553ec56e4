"""A server that drains: no new sessions, and health checks and sessions notice."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from logitport import Client, Request, ServerUnavailable
from tests.attacks.conftest import RawEngine
from tests.conftest import COMMAND, free_address
from tests.end_to_end.engines import sessions_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

VOCAB = 8


@pytest.fixture
def started(start_server: Callable[..., Any]) -> Any:
    return start_server("--listen", "127.0.0.1:0")


@pytest.fixture
def sessions(started: RunningServer) -> Iterator[list[RawEngine]]:
    """A session that can move, and one that cannot."""
    opened = [RawEngine(started.target, can_move=can_move) for can_move in (True, False)]
    yield opened
    for session in opened:
        session.close()


def should_move(session: RawEngine) -> bool:
    return bool(session.send(step={}).edits.should_move)


def health(target: str) -> Any:
    with grpc.insecure_channel(target) as channel:
        return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30).status


def test_drain_waits_for_sessions_that_can_move(started: RunningServer, sessions: list[RawEngine]) -> None:
    assert [should_move(session) for session in sessions] == [False, False]
    command = [COMMAND, "drain", started.target]
    ran = subprocess.run(
        [*command, "--timeout-seconds", "0.3"], capture_output=True, text=True, timeout=200, check=False
    )
    assert ran.returncode == 1
    assert "2 sessions are left, 1 of which can move" in ran.stderr
    assert [should_move(session) for session in sessions] == [True, False]
    assert health(started.target) == health_pb2.HealthCheckResponse.NOT_SERVING
    with (
        Client(started.target, timeout=30) as client,
        pytest.raises(ServerUnavailable, match=r":\d+: the server is draining; open a session on another one$"),
    ):
        client.session(vocab_size=VOCAB)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as waiting:
        sessions[0].close()
        printed, _ = waiting.communicate(timeout=200)
    assert waiting.returncode == 0
    assert "1 sessions are left, 0 of which can move" in printed
    assert not should_move(sessions[1])  # it goes on


def test_drain_of_several_servers(start_server: Callable[..., Any]) -> None:
    targets = [start_server("--listen", "127.0.0.1:0").target for _ in range(2)]
    command = [COMMAND, "drain", ",".join([*targets, "127.0.0.1:1"])]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 1
    assert ran.stdout.splitlines() == [
        f"drained {target}; 0 sessions are left, 0 of which can move" for target in targets
    ]
    assert ran.stderr.startswith("logitport: no connection to 127.0.0.1:1")
    assert {health(target) for target in targets} == {health_pb2.HealthCheckResponse.NOT_SERVING}


def test_drain_takes_no_list_of_a_fleet(tmp_path: Path, started: RunningServer) -> None:
    (tmp_path / "fleet.json").write_text(json.dumps([{"targets": [started.target]}]))
    command = [COMMAND, "drain", f"file:{tmp_path / 'fleet.json'}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 2
    assert health(started.target) == health_pb2.HealthCheckResponse.SERVING


def test_a_server_that_ends_waits_for_sessions_that_can_move(started: RunningServer, sessions: list[RawEngine]) -> None:
    started.process.send_signal(signal.SIGTERM)
    wait_until(lambda: should_move(sessions[0]))
    assert started.process.poll() is None
    sessions[0].close()
    assert started.process.wait(200) == 0


def checked_step(session: Any, handle: Any, history: list[int], new_ids: list[int]) -> None:
    """Make a step, and check that the row has the edits of the whole history."""
    history.extend(new_ids)
    logits = np.zeros((1, VOCAB), np.float32)
    session.step({handle: new_ids}).apply(logits)
    after = {next_id for one, next_id in itertools.pairwise(history) if one == history[-1]}
    assert {at for at in range(VOCAB) if logits[0, at] == -np.inf} == after


def terminate(server: RunningServer) -> None:
    server.process.send_signal(signal.SIGTERM)


def drain(server: RunningServer) -> None:
    """Drain the server, and stop it when it was left."""
    command = [COMMAND, "drain", server.target, "--timeout-seconds", "0"]
    subprocess.run(command, capture_output=True, timeout=200, check=False)
    threading.Timer(1.0, server.process.terminate).start()


@pytest.mark.parametrize(("transport", "stop"), [("grpc", terminate), ("local", terminate), ("auto", drain)])
def test_a_rolling_restart_loses_no_request(start_server: Callable[..., Any], transport: Any, stop: Any) -> None:
    servers = [start_server("--listen", "127.0.0.1:0") for _ in range(2)]
    targets = [server.target for server in servers]
    with Client(targets) as client, client.session(vocab_size=VOCAB, transport=transport) as session:
        history = [1, 2, 1]
        handle = session.add(Request(history, processors=[("no_repeat_ngram", {"ngram_size": 2})]))
        checked_step(session, handle, history, [])
        for moves in range(1, 3):
            (present,) = [at for at, server in enumerate(servers) if sessions_of(server)[0]]
            stop(servers[present])
            wait_until(lambda: step_moves(session, handle, history, moves))  # noqa: B023 - called at once
            assert [bool(sessions_of(server)[0]) for server in servers if server is not servers[present]] == [True]
            servers[present].process.wait(200)
            servers[present] = start_server("--listen", targets[present])
        assert session.resyncs == 0


def step_moves(session: Any, handle: Any, history: list[int], moves: int) -> bool:
    checked_step(session, handle, history, [len(history) % VOCAB])
    return bool(session.reconnects == moves)


def test_a_session_stays_where_no_other_server_is(start_server: Callable[..., Any]) -> None:
    server = start_server("--listen", "127.0.0.1:0", "--max-session-age", "0.1")
    with Client([server.target, free_address()]) as client, client.session(vocab_size=VOCAB) as session:
        history = [1, 2, 1]
        handle = session.add(Request(history, processors=[("no_repeat_ngram", {"ngram_size": 2})]))
        for step in range(20):
            checked_step(session, handle, history, [step % VOCAB])
            time.sleep(0.02)
        assert sessions_of(server)[0] == 1


def test_a_call_that_does_not_end_delays_the_end_for_seconds(start_server: Callable[..., Any]) -> None:
    """It gets five seconds, whatever is left of --stop-seconds. Meanwhile the server drains, and does not hang."""
    server = start_server("--stop-seconds", "3600", "--metrics-listen", "127.0.0.1:0")
    seen: set[str] = set()
    with grpc.insecure_channel(server.target) as channel:
        method = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        held = threading.Event()
        call = method(iter(lambda: held.wait() and b"", None))
        url = server.metrics_url.replace("/metrics", "/readyz")
        wait_until(lambda: "logitport" in urllib.request.urlopen(server.metrics_url).read().decode())
        server.process.send_signal(signal.SIGTERM)
        while server.process.poll() is None:
            try:
                urllib.request.urlopen(url, timeout=60)
            except urllib.error.HTTPError as error:
                with error:
                    seen.add(error.read().decode().strip())
            except OSError:
                time.sleep(0.1)
        held.set()
        call.cancel()
    assert server.process.wait() == 0
    assert seen == {"not ready"}
