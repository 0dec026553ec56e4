"""Sessions that move because their server states that they should, against scripted servers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import LimitExceeded, LogitportError, NotFound, Request, ServerUnavailable
from logitport.session import Session
from logitport.session.failover import moves
from logitport.session.failover.moves import OtherServer
from logitport_proto import processing_pb2
from tests.client.scripted import VOCAB, Script, failure, int32, kinds
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport.session import PendingRequest

SHOULD_MOVE = {"edits": processing_pb2.StepEdits(should_move=True)}


class Fleet:
    """A session on `first`, whose server states that it should move, and the other servers that it finds.

    Attributes:
        others: scripts of the servers that it finds, in this order; an error if none is found.
        settled: whether the session has moved, for each attempt that came so far.
        connected: number of connections to others.
        restore: registers the client's processors.
    """

    def __init__(self, **options: Any) -> None:
        self.first = Script()
        self.first.answer = lambda frame: SHOULD_MOVE if frame.HasField("step") else Script.correct(frame)
        self.others: list[Script | LogitportError | None] = []
        self.next: list[Script] = []
        self.settled: list[bool] = []
        self.restore: Callable[[], dict[str, LogitportError]] = dict
        opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
        options |= {"timeout": 5, "local": "grpc", "with_torch": False, "elsewhere": self._find}
        self.session = Session(lambda _: self.next.pop(0) if self.next else self.first, opening, **options)
        self.handles = [self.session.add(Request([1])) for _ in range(2)]

    def step(self) -> None:
        result = self.session.step({handle: [2] for handle in self.handles}).apply(np.zeros((2, VOCAB), np.float32))
        assert result.failures == {}

    def step_until(self, condition: Callable[[], object]) -> None:
        def stepped() -> bool:
            self.step()
            return bool(condition())

        wait_until(stepped)

    def _find(self) -> OtherServer | None:
        found = self.others.pop(0) if self.others else None
        if isinstance(found, LogitportError):
            raise found
        if found is None:
            return None
        return OtherServer(lambda _: found, self.restore, self.settled.append)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "_PAUSE_SECONDS", 0.0)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet()
    yield made
    made.session.close()


def attempt(fleet: Fleet, *others: Script | LogitportError | None) -> None:
    """Make steps until the session has tried all of these servers."""
    fleet.others = list(others)
    count = len(fleet.settled) + sum(isinstance(other, Script) for other in others)
    fleet.step_until(lambda: not fleet.others and len(fleet.settled) >= count)


def refusing(kind: str, error: LogitportError) -> Script:
    """A server that raises or replies with an error for frames of this kind."""
    script = Script()

    def answer(frame: Any) -> dict[str, Any]:
        if frame.WhichOneof("frame") != kind:
            return Script.correct(frame)
        if isinstance(error, NotFound):
            added = Script.correct(frame)["added"]
            added.failures.append(failure(1, error))
            return {"added": added}
        raise error

    script.answer = answer
    return script


def begin_pending(fleet: Fleet) -> PendingRequest:
    """Begin to admit a request, which stays pending on the first server."""
    first = fleet.first.answer

    def answer(frame: Any) -> dict[str, Any]:
        reply = first(frame)
        if frame.HasField("add") and frame.add.in_background:
            reply["added"].pending = b"\1" * len(frame.add.requests)
        return reply

    fleet.first.answer = answer
    return fleet.session.begin_add([Request([1])])[0]


def test_the_session_moves_with_all_requests(fleet: Fleet) -> None:
    other = Script()
    attempt(fleet, other)
    assert fleet.first.closed
    assert fleet.settled == [True]
    assert kinds(other)[:3] == ["open", "add", "step"]
    assert other.frames[0].open.expected_requests == 2
    sent = [entry.request.output_ids for entry in other.frames[1].add.requests]
    steps = kinds(fleet.first).count("step")
    assert sent == [int32(*[2] * steps)] * 2
    assert (fleet.session.reconnects, fleet.session.resyncs) == (1, 0)


REFUSALS = [
    ("add", NotFound("not read yet")),
    ("add", LimitExceeded("the frame is too large")),
    ("add", ServerUnavailable("gone")),
    ("add", ServerUnavailable("no answer", timed_out=True)),
    ("add", LogitportError("a defect")),
    ("open", LimitExceeded("full")),
    ("open", ServerUnavailable("gone", was_connected=True)),
]


@pytest.mark.parametrize(("kind", "error"), REFUSALS)
def test_the_session_stays_if_the_other_server_does_not_take_all_requests(
    fleet: Fleet, kind: str, error: LogitportError
) -> None:
    """The present server could still process them."""
    other = refusing(kind, error)
    fleet.others = [other]
    fleet.step_until(lambda: other.closed)
    assert not fleet.first.closed
    assert fleet.settled == ([False] if kind == "add" else [])
    assert kinds(other) == ["open", "add"][: 1 + (kind == "add")]
    steps = kinds(fleet.first).count("step")
    fleet.step()
    assert kinds(fleet.first).count("step") == steps + 1
    assert fleet.session.reconnects == 0
    attempt(fleet, Script())
    assert fleet.settled[-1]


def test_a_request_that_other_servers_admit_in_another_way_stays_as_it_was(fleet: Fleet) -> None:
    """The first frame is accepted, and the requests read logits there."""
    other = Script()

    def answer(frame: Any) -> dict[str, Any]:
        if frame.HasField("add") and frame.add.in_background:
            return {"added": processing_pb2.RequestsAdded(failures=[failure(2, NotFound(""))])}
        if frame.HasField("add"):
            chains = [processing_pb2.AdmittedChain()] * 2
            return {"added": processing_pb2.RequestsAdded(reads_logits=b"\1\1", chains=chains)}
        return Script.correct(frame)

    other.answer = answer
    pending = begin_pending(fleet)
    attempt(fleet, other)
    assert fleet.settled == [False]
    assert [handle.reads_logits for handle in fleet.handles] == [False, False]
    assert not pending.done


def test_pending_admissions_move(fleet: Fleet) -> None:
    pending = begin_pending(fleet)
    attempt(fleet, Script())
    assert fleet.settled == [True]
    assert pending.result(0) is pending.candidate
    assert len(fleet.session) == 3


@pytest.mark.parametrize("answers", [True, False])
def test_registrations_come_first_and_must_be_answered(fleet: Fleet, answers: bool) -> None:
    other, seen = Script(), []

    def restore() -> dict[str, LogitportError]:
        seen.append(kinds(other))
        if not answers:
            raise ServerUnavailable("no answer", timed_out=True)
        return {}

    fleet.restore, fleet.others = restore, [other]
    fleet.step_until(lambda: fleet.settled or other.closed)
    assert seen == [["open"]]
    assert fleet.first.closed == answers
    assert other.closed != answers


@pytest.mark.parametrize("error", [None, ServerUnavailable("none")])
def test_no_other_server(fleet: Fleet, error: LogitportError | None) -> None:
    attempt(fleet, error, error, error)
    assert not fleet.first.closed
    attempt(fleet, Script())
    assert fleet.first.closed


@pytest.mark.parametrize("hangs", ["list", "connection", "registry"])
def test_steps_do_not_wait_for_another_server(fleet: Fleet, hangs: str) -> None:
    """Such as one that has stopped, or a list that is not read."""
    goes_on, entered = threading.Event(), threading.Event()
    other = Script()

    def wait(at: str) -> None:
        if at == hangs:
            entered.set()
            assert goes_on.wait(60)

    def found() -> OtherServer:
        wait("list")

        def connect(_: float) -> Script:
            wait("connection")
            return other

        def restore() -> dict[str, LogitportError]:
            wait("registry")
            return {}

        return OtherServer(connect, restore, fleet.settled.append)

    calls: list[int] = []
    fleet.session._requests._moves._find = lambda: calls.append(1) or found()  # type: ignore[union-attr, func-returns-value, assignment]
    fleet.step_until(entered.is_set)
    for _ in range(20):
        fleet.step()
    assert len(calls) == 1, "one attempt at a time"
    assert not fleet.first.closed
    goes_on.set()
    fleet.step_until(lambda: fleet.settled)
    assert fleet.settled == [True]


def test_pauses_between_attempts_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "_PAUSE_SECONDS", 1.0)
    opening = processing_pb2.OpenSession()
    mover, pauses = moves.Moves(lambda: None, opening, timeout=1.0, local="grpc"), []
    record = mover._backoff.next
    monkeypatch.setattr(mover._backoff, "next", lambda: pauses.append(record()))
    for _ in range(7):
        mover._open(0, 1)
        assert mover._backoff.is_pausing
    assert all(least <= pause <= 1.5 * least for pause, least in zip(pauses, [1, 2, 4, 8, 16, 30, 30], strict=True))


@pytest.mark.parametrize("ends", ["close", "lost"])
def test_a_connection_that_is_not_wanted_any_more_is_closed(ends: str) -> None:
    """It was opened while the session was closed, or reconnected."""
    fleet = Fleet()
    other, goes_on, entered = Script(), threading.Event(), threading.Event()

    def restore() -> dict[str, LogitportError]:
        entered.set()
        assert goes_on.wait(60)
        return {}

    fleet.restore, fleet.others = restore, [other]
    fleet.step_until(entered.is_set)
    if ends == "close":
        fleet.session.close()
    else:
        fleet.first.refuse_to_send = ServerUnavailable("gone")
        fleet.next = [Script()]
        fleet.step()
    goes_on.set()
    wait_until(lambda: other.closed)
    assert kinds(other) == ["open"]
    fleet.session.close()


def test_requests_with_state_stay(fleet: Fleet) -> None:
    other = Script()
    fleet.handles[0].processed = True
    fleet.others = [other]
    for _ in range(5):
        fleet.step()
    assert fleet.others == [other], "no attempt is made"
