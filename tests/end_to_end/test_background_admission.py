"""Admissions in the background: the steps of other requests are answered while a class checks its parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import (
    Client,
    EditProcessor,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    ProcessorFailed,
    Request,
    ServerUnavailable,
)
from tests.conftest import free_address
from tests.waiting import SECONDS, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from logitport import EditRequest, RowEdits
    from logitport.session import PendingRequest, Session

VOCAB = 32
SHIPPED = "--enable-custom-logit-processor"
# In the server's process, shipped code can see the files with which a test releases it.
NO_WORKERS = (SHIPPED, "--isolation", "none")


class Waits(EditProcessor):
    """Denies id 7. Its parameters are accepted when the file `until` exists; then the file `begun` exists, too."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        import time
        from pathlib import Path

        from logitport import InvalidArgument

        Path(params["begun"]).touch()
        while not Path(params["until"]).exists():
            time.sleep(0.005)
        if params.get("refuse"):
            raise InvalidArgument("refuse is set")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([7])


class Hangs(EditProcessor):
    """Never accepts its parameters."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        import time

        time.sleep(3600)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        pass


class Blocking:
    """Requests that are admitted when the test releases them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def request(self, name: str = "a", processor: Any = Waits, **params: Any) -> Request:
        files = {"begun": str(self._folder / f"{name}.begun"), "until": str(self._folder / name)}
        return Request([1], processors=[(processor, files | params)], request_id=name, tenant=name)

    def wait(self, name: str = "a") -> None:
        """Wait until the parameters of a request are being checked."""
        wait_until((self._folder / f"{name}.begun").exists)

    def release(self, name: str = "a") -> None:
        (self._folder / name).touch()


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[Blocking]:
    requests = Blocking(tmp_path)
    yield requests
    for name in "abc":
        requests.release(name)


@pytest.fixture(scope="module")
def inline(serving: Callable[..., Any]) -> Iterator[Any]:
    with serving(*NO_WORKERS) as running:
        yield running


@pytest.fixture(params=["grpc", "local"])
def session(request: pytest.FixtureRequest, inline: Any) -> Iterator[Session]:
    with (
        Client(inline.target, timeout=SECONDS) as client,
        client.session(vocab_size=VOCAB, transport=request.param, max_requests=6) as opened,
    ):
        yield opened


def denied(session: Session, *handles: Any) -> list[list[int]]:
    """Make a step, and return the ids that are denied in each row."""
    logits = np.zeros((len(handles), VOCAB), np.float32)
    session.step(dict.fromkeys(handles, ())).apply(logits)
    return [np.flatnonzero(row == -np.inf).tolist() for row in logits]


def add_running(session: Session) -> Any:
    return session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [3]})]))


def polled(session: Session, count: int, step: Callable[[], object]) -> list[PendingRequest]:
    """Make steps and poll until so many admissions have ended."""
    ended: list[PendingRequest] = []

    def enough() -> bool:
        step()
        ended.extend(session.poll())
        return len(ended) == count

    wait_until(enough)
    return ended


def test_steps_are_answered_while_an_admission_is_pending(session: Session, blocking: Blocking) -> None:
    running = add_running(session)
    pending = session.begin_add([blocking.request()])[0]
    blocking.wait()
    for _ in range(20):
        assert denied(session, running) == [[3]]
        assert session.poll() == []
    other = add_running(session)
    assert denied(session, running, other) == [[3], [3]]
    session.remove(other)
    blocking.release()
    assert polled(session, 1, lambda: denied(session, running)) == [pending]
    assert denied(session, running, pending.handle) == [[3], [7]]


@pytest.mark.parametrize("refused", ["parameters", "name"])
def test_errors_are_those_of_add(session: Session, blocking: Blocking, refused: str) -> None:
    blocking.release()
    request = blocking.request(refuse=True) if refused == "parameters" else Request(processors=[("nobody/nothing", {})])
    with pytest.raises((InvalidArgument, NotFound)) as synchronous:
        session.add(request)
    with pytest.raises(type(synchronous.value)) as in_background:
        session.begin_add([request])[0].result(SECONDS)
    assert in_background.value.message == synchronous.value.message
    assert in_background.value.processor == synchronous.value.processor
    assert len(session) == 0


def test_a_cancelled_admission_frees_its_slot(session: Session, blocking: Blocking) -> None:
    pending = session.begin_add([blocking.request("a")])[0]
    blocking.wait("a")
    pending.cancel()
    other = session.begin_add([blocking.request("b")])[0]
    blocking.release("b")
    handle = other.result(SECONDS)
    assert handle.slot == pending.candidate.slot
    assert denied(session, handle) == [[7]]
    blocking.release("a")
    running = add_running(session)
    for _ in range(10):
        assert denied(session, handle, running) == [[7], [3]]
        assert session.poll() == []


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_pending_requests_take_no_threads_of_the_steps(inline: Any, blocking: Blocking, transport: Any) -> None:
    """There are more of them than one principal may use threads for its calls."""
    with (
        Client(inline.target, timeout=SECONDS) as client,
        client.session(vocab_size=VOCAB, transport=transport, max_requests=151) as session,
    ):
        client.register(Waits, name="test/waits")
        blocking.release("b")
        running = session.add(blocking.request("b"))
        request = blocking.request("a", processor="test/waits")
        pending = [session.begin_add([replace(request, tenant=f"tenant {number}")])[0] for number in range(150)]
        blocking.wait("a")
        for add in (session.add, lambda one: session.begin_add([one])):
            with pytest.raises(LimitExceeded, match="all 151 slots are taken"):
                add(request)
        for _ in range(5):
            assert denied(session, running) == [[7]]
            assert session.poll() == []
        blocking.release("a")
        handles = [one.result(SECONDS) for one in pending]
        assert denied(session, running, *handles) == [[7]] * 151


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_closing_a_session_with_a_pending_request(inline: Any, blocking: Blocking, transport: Any) -> None:
    with Client(inline.target, timeout=SECONDS) as client:
        with client.session(vocab_size=VOCAB, transport=transport) as session:
            pending = session.begin_add([blocking.request()])[0]
            blocking.wait()
        assert pending.cancelled
        with client.session(vocab_size=VOCAB, transport=transport) as session:
            assert denied(session, add_running(session)) == [[3]]


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_a_pending_request_survives_the_server(
    start_server: Callable[..., Any], blocking: Blocking, transport: Any
) -> None:
    target = free_address()
    server = start_server("--listen", target, *NO_WORKERS)
    with Client(target, timeout=200) as client, client.session(vocab_size=VOCAB, transport=transport) as session:
        running = add_running(session)
        pending = session.begin_add([blocking.request()])[0]
        blocking.wait()
        server.process.kill()
        server.process.wait()
        start_server("--listen", target, *NO_WORKERS)
        assert denied(session, running) == [[3]]
        assert (session.reconnects, pending.done) == (1, False)
        blocking.release()
        assert polled(session, 1, lambda: denied(session, running)) == [pending]
        assert denied(session, running, pending.handle) == [[3], [7]]


def test_a_server_stops_while_a_request_is_pending(start_server: Callable[..., Any], blocking: Blocking) -> None:
    server = start_server(*NO_WORKERS, "--stop-seconds", "1")
    with Client(server.target, timeout=SECONDS) as client, client.session(vocab_size=VOCAB, reconnect_seconds=0) as one:
        one.begin_add([blocking.request()])[0]
        blocking.wait()
        assert server.stop() == 0
        assert "1 steps or admissions are still running" in server.log.read_text()
        with pytest.raises(ServerUnavailable):
            one.begin_add([blocking.request()])[0].result()


def test_a_class_that_hangs_in_a_worker(start_server: Callable[..., Any]) -> None:
    server = start_server(SHIPPED, "--load-timeout-seconds", "3")
    with (
        Client(server.target, timeout=SECONDS) as client,
        client.session(vocab_size=VOCAB) as session,
    ):
        running = add_running(session)
        pending = session.begin_add([Request([1], processors=[(Hangs, {})])])[0]
        assert polled(session, 1, lambda: denied(session, running)) == [pending]
        assert type(pending.error) is ProcessorFailed
        assert "refused 1 of 1 requests of the caller" in server.log.read_text()


class CountsOutput(EditProcessor):
    """Denies the id that is the number of output ids, which it counts itself."""

    def start(self, request: EditRequest) -> None:
        request.state = len(request.history.output_token_ids)

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state += 1

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([request.state])


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_slow_classes_do_not_hold_up_the_others(
    start_server: Callable[..., Any],
    blocking: Blocking,
    transport: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # For `CountsOutput` on a busy machine.
    monkeypatch.setattr("logitport.session.requests.admissions.QUIET_SECONDS", 2.0)
    target = free_address()
    first = start_server("--listen", target, *NO_WORKERS)
    with (
        Client(target, timeout=SECONDS) as client,
        client.session(vocab_size=VOCAB, transport=transport) as session,
    ):
        built_in = session.add(Request([1], processors=[("disallowed_tokens", {"token_ids": [20]})]))
        counting = session.add(Request([1], processors=[(CountsOutput, {})], tenant="counts"))
        for name in "abc":
            blocking.release(name)
        slow = [session.add(blocking.request(name)) for name in "abc"]
        handles = [built_in, counting, *slow]
        session.step({handle: [5] for handle in handles}).apply(np.zeros((5, VOCAB), np.float32))
        for name in "abc":
            (tmp_path / name).unlink()
        first.process.kill()
        first.process.wait()
        start_server("--listen", target, *NO_WORKERS)
        # Returns although the slow classes are not released before the end of the test.
        logits = np.zeros((5, VOCAB), np.float32)
        result = session.step({handle: [5] for handle in handles}).apply(logits, check=False)
        assert {handle: type(error) for handle, error in result.failures.items()} == dict.fromkeys(
            slow, ProcessorFailed
        )
        session.remove(*slow)
        logits = np.zeros((2, VOCAB), np.float32)
        assert session.step({built_in: [5], counting: [5]}).apply(logits).failures == {}
        assert [np.flatnonzero(row == -np.inf).tolist() for row in logits] == [[20], [3]]
        assert session.resyncs == 0
