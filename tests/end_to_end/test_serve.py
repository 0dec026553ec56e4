"""The life cycle of a server: ready, many clients at once, drained, stopped."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, Request, RequestsFailed, ServerUnavailable
from logitport.core import compiled
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB = 16
# The processors wait for files, and for longer than the deadline of a call.
FLAG = ("--enable-custom-logit-processor", "--isolation", "none")


class SignalsThenSleeps(CustomLogitProcessor):
    """Creates a file when it begins, then sleeps."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        Path(custom_param_list[0]["begun"]).touch()
        time.sleep(custom_param_list[0]["seconds"])
        return logits.add_(1)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def step(session: Any, handle: Any) -> torch.Tensor:
    logits = torch.zeros(1, VOCAB)
    session.step({handle: [1]}).apply(logits)
    return logits


def three_calls(
    client: Client, pool: ThreadPoolExecutor, folder: Path, seconds: float
) -> Iterator[Future[torch.Tensor]]:
    """Begin an Apply and one step per transport, each of this duration."""
    for name in ("apply", "grpc", "local"):
        request = Request([1], processors=[(SignalsThenSleeps, {"begun": str(folder / name), "seconds": seconds})])
        if name == "apply":
            yield pool.submit(lambda sent=request: client.apply(torch.zeros(1, VOCAB), [sent]).logits)
        else:
            session = client.session(vocab_size=VOCAB, dtype=torch.float32, transport=name, reconnect_seconds=0)  # type: ignore[arg-type]
            assert session.transport == name
            yield pool.submit(step, session, session.add(request))
        wait_until((folder / name).exists)


def test_steps_in_flight_are_finished(
    start_server: Callable[..., RunningServer], pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    running = start_server(*FLAG)
    with Client(running.target) as client:
        calls = list(three_calls(client, pool, tmp_path, 1.0))
        assert running.stop() == 0
        assert all(torch.equal(call.result(), torch.ones(1, VOCAB)) for call in calls)
    assert "Traceback" not in running.log.read_text()


def test_unfinished_steps_do_not_keep_the_server_running(
    start_server: Callable[..., RunningServer], pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    running = start_server(*FLAG, "--stop-seconds", "0.2")
    with Client(running.target) as client:
        calls = list(three_calls(client, pool, tmp_path, 3600))
        assert running.stop() == 0
        for call in calls:
            with pytest.raises((ServerUnavailable, RequestsFailed), match=r"127\.0\.0\.1"):
                call.result()
    assert "3 steps or admissions are still running after 0.2 s; exiting without them" in running.log.read_text()


def test_a_second_signal_ends_it_at_once(
    start_server: Callable[..., RunningServer], pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    running = start_server(*FLAG, "--stop-seconds", "3600")
    stuck = Request([1], processors=[(SignalsThenSleeps, {"begun": str(tmp_path / "begun"), "seconds": 3600})])
    with Client(running.target) as client:
        under_way = pool.submit(client.apply, torch.zeros(1, VOCAB), [stuck])
        wait_until((tmp_path / "begun").exists)
        running.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping" in running.log.read_text())
        assert running.stop() != 0
        with pytest.raises(ServerUnavailable):
            under_way.result()


def test_idle_sessions_are_ended(start_server: Callable[..., RunningServer]) -> None:
    running = start_server("--stop-seconds", "3600")
    with Client(running.target) as client:
        options: dict[str, Any] = {"vocab_size": VOCAB, "dtype": torch.float32, "reconnect_seconds": 0}
        sessions = [client.session(transport=transport, **options) for transport in ("grpc", "local")]
        handles = [session.add(Request([1])) for session in sessions]
        assert running.stop() == 0
        for session, handle in zip(sessions, handles, strict=True):
            with pytest.raises(ServerUnavailable):
                step(session, handle)


def test_a_server_without_clients_ends_at_once(start_server: Callable[..., RunningServer]) -> None:
    running = start_server("--stop-seconds", "3600")
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(30) == 0
    assert "Traceback" not in running.log.read_text()


def test_without_a_server() -> None:
    with Client("127.0.0.1:1", timeout=30) as client:
        for call in (client.processors, lambda: client.session(vocab_size=VOCAB)):
            with pytest.raises(ServerUnavailable, match=r"no connection to 127\.0\.0\.1:1.* running there\? If it"):
                call()


def test_many_clients_at_once_in_threads(server: RunningServer, pool: ThreadPoolExecutor) -> None:
    def generate(seed: int) -> bool:
        local: Any = "grpc" if seed % 2 else "local"
        with Client(server.target) as client, client.session(vocab_size=VOCAB, dtype="float32", transport=local) as s:
            handle = s.add(Request([seed], processors=[("no_repeat_ngram", {"ngram_size": 1, "window_size": 99})]))
            for token_id in range(8, 14):
                logits = torch.zeros(1, VOCAB)
                s.step({handle: [token_id]}).apply(logits)
                denied = (logits[0] == float("-inf")).nonzero().flatten().tolist()
                assert denied == sorted([seed, *range(8, token_id + 1)])
        return True

    assert all(pool.map(generate, range(8)))


def test_many_calls_at_once_of_one_client(client: Client, pool: ThreadPoolExecutor) -> None:
    def ban(token_id: int) -> list[int]:
        request = Request(processors=[("disallowed_tokens", {"token_ids": [token_id]})])
        result = client.apply(torch.zeros(1, VOCAB), [request])
        denied: list[int] = (result.logits[0] == float("-inf")).nonzero().flatten().tolist()
        return denied

    assert list(pool.map(ban, range(VOCAB))) == [[token_id] for token_id in range(VOCAB)]


def test_slow_processors_do_not_delay_others(
    start_server: Callable[..., RunningServer], pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Slow processors in all threads must not block logits-free steps of other engines."""
    waiting = tmp_path / "let go"
    client = Client(start_server(*FLAG).target)

    class Waits(CustomLogitProcessor):
        def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
            Path(custom_param_list[0]["begun"]).touch()
            while not Path(custom_param_list[0]["waits_for"]).exists():
                time.sleep(0.01)
            return logits

    begun = [tmp_path / str(at) for at in range(12)]
    requests = [Request(processors=[(Waits, {"begun": str(path), "waits_for": str(waiting)})]) for path in begun]
    stuck = [pool.submit(client.apply, torch.zeros(1, VOCAB), [request]) for request in requests]
    try:
        for path in begun:
            wait_until(path.exists)
        with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
            handle = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [2]})]))
            assert step(session, handle)[0, 2] == float("-inf")
    finally:
        waiting.touch()
    assert all(isinstance(call.result().logits, torch.Tensor) for call in stuck)
    client.close()


def test_a_server_logs_that_its_core_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: Callable[..., RunningServer]
) -> None:
    package = tmp_path / "logitport_core"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_core.py").write_text("INTERFACE = -1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = start_server("--log-format", "json")
    with Client(server.target) as client, client.session(vocab_size=8, dtype=torch.float32) as session:
        request = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))
        logits = torch.zeros(1, 8)
        session.step({request: []}).apply(logits)
    assert logits.isneginf().nonzero().tolist() == [[0, 3]]
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (warning,) = [line for line in lines if line["logger"] == "logitport.core.compiled"]
    assert warning["level"] == "WARNING"
    problem = f"the compiled core has interface -1, and this logitport needs {compiled.INTERFACE}"
    assert warning["message"].startswith(f"{problem}. logitport runs in pure Python: ")
    assert any(f"core: pure Python: {problem};" in line["message"] for line in lines)
