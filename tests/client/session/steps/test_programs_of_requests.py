"""The programs of a session's requests while connections are lost, against scripted servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import InvalidArgument, LogitportError, NotFound, Request, RequestsFailed, ServerUnavailable
from logitport.errors import to_proto
from logitport.session import Session
from logitport.session.requests.program_trust import ProgramTrust
from logitport_proto import processing_pb2
from tests.client.scripted import VOCAB, Script, Servers, failure, int32, kinds
from tests.programs.runtime import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_programs.program import Program

TEMPERATURE, MIN_P = build.temperature().program, build.min_p().program
HALF = Request([1], processors=[("half", {"temperature": 2.0})])


class Server:
    """Has one built-in, a program, and lets engines run it; ends when the test says so."""

    def __init__(self, script: Any, program: Program = TEMPERATURE) -> None:
        self.script, self.program = script, program
        self.leaves_programs = True
        self.ends_at = ""
        self.on_engine: set[int] = set()
        self.on_server: set[int] = set()
        script.answer = self.answer

    def answer(self, frame: Any) -> dict[str, Any]:
        kind = frame.WhichOneof("frame")
        if kind == self.ends_at:
            self.end()
            raise ServerUnavailable("gone")
        if kind == "add":
            return {"added": self.add(frame.add)}
        if kind == "get_programs":
            if not self.on_engine or {*frame.get_programs.digests} != {self.program.digest}:
                return {"error": to_proto(NotFound("the engine runs no such program"))}
            return {"programs": processing_pb2.Programs(programs=[self.program.to_bytes()])}
        if kind == "remove":
            gone = {*np.frombuffer(frame.remove.slots, "<i4").tolist()}
            self.on_engine -= gone
            self.on_server -= gone
        if kind == "step":
            slots = np.frombuffer(frame.step.slots, "<i4").tolist()
            unknown = [slot for slot in slots if slot not in self.on_engine | self.on_server]
            rows = [row for row, slot in enumerate(slots) if slot in self.on_server]
            failures = [failure(slot, NotFound("no such slot")) for slot in unknown]
            return {"edits": processing_pb2.StepEdits(logits_rows=int32(*rows), failures=failures)}
        return dict(self.script.correct(frame))

    def add(self, frame: processing_pb2.AddRequests) -> processing_pb2.RequestsAdded:
        added = processing_pb2.RequestsAdded()
        reads = bytearray()
        for request in frame.requests:
            on_server = request.programs_on_server or not self.leaves_programs
            (self.on_server if on_server else self.on_engine).add(request.slot)
            (self.on_engine if on_server else self.on_server).discard(request.slot)
            reads.append(on_server)
            programs = [] if on_server else [self.program.digest]
            added.chains.add(processors=["half"], programs=programs, follows_from_history=True)
        added.reads_logits = bytes(reads)
        return added

    def end(self) -> None:
        self.script.refuse_to_send = ServerUnavailable("gone")


@pytest.fixture
def opened_on() -> Callable[..., tuple[Session, list[Server]]]:
    def open_session(count: int, trust: Any = "all", **options: Any) -> tuple[Session, list[Server]]:
        scripts = [Script() for _ in range(count)]
        servers = [Server(script) for script in scripts]
        trust = ProgramTrust(trust) if isinstance(trust, str) else trust
        return Servers(scripts, trust=trust, **options).session, servers

    return open_session


def run(session: Session, *handles: Any, check: bool = True) -> tuple[Any, list[list[float]]]:
    logits = np.full((len(handles), VOCAB), 4, np.float32)
    result = session.step({handle: [] for handle in handles}).apply(logits, check=check)
    return result, logits.tolist()


def build_root() -> Program:
    """NaN for rows with a negative logit."""
    write = build.Writer()
    write("sqrt", write("logits"))
    return write.verified(name="root").program


@pytest.mark.parametrize("mode", ["all", "trusted"])
@pytest.mark.parametrize("add", [Session.add, lambda session, request: session.begin_add([request])[0].result(0)])
def test_a_server_that_ends_while_programs_are_fetched(opened_on: Any, mode: str, add: Any) -> None:
    session, (first, second) = opened_on(2, mode)
    first.ends_at = "get_programs"
    handle = add(session, HALF)
    assert handle.programs_on_server == handle.sends_logits == (mode == "trusted")
    assert (second.on_engine, second.on_server) == (({0}, set()) if mode == "all" else (set(), {0}))
    assert run(session, handle)[1] == [[2.0 if mode == "all" else 4.0] * VOCAB]  # the script returns logits as they are


@pytest.mark.parametrize("add", [Session.add, lambda session, request: session.begin_add([request])])
def test_servers_that_all_end_while_programs_are_fetched(opened_on: Any, add: Any) -> None:
    session, servers = opened_on(3)
    for server in servers[:2]:
        server.ends_at = "get_programs"
    with pytest.raises(ServerUnavailable):
        add(session, HALF)
    assert (len(session), session.poll()) == (0, [])
    assert run(session, session.add(HALF))[1] == [[2.0] * VOCAB]
    assert servers[2].on_engine == {0}


def test_a_server_that_ends_while_programs_of_a_pending_request_are_fetched(opened_on: Any) -> None:
    session, (first, second, third) = opened_on(3, reconnect_seconds=20.0)
    first.add = lambda frame: processing_pb2.RequestsAdded(  # type: ignore[method-assign]
        reads_logits=b"\0" * len(frame.requests),
        pending=b"\1" * len(frame.requests),
        chains=[processing_pb2.AdmittedChain()] * len(frame.requests),
    )
    pending = session.begin_add([HALF])[0]
    first.end()
    second.ends_at = "get_programs"
    handle = pending.result(10)
    assert not handle.removed
    assert third.on_engine == {0}
    assert run(session, handle)[1] == [[2.0] * VOCAB]


@pytest.mark.parametrize("mode", ["all", "trusted"])
def test_programs_of_an_entering_request_run_in_its_first_step(opened_on: Any, mode: str) -> None:
    """Fetched after the forward pass. If the server is to run them, the step is repeated."""
    session, (server,) = opened_on(1, mode)
    other, entered = session.add(HALF), *session.enter([HALF])
    pending = session.step({other: [2], entered: [2]})
    assert kinds(server.script)[-2:] == ["add", "step"]
    assert entered.programs == ()
    logits = np.full((2, VOCAB), 4, np.float32)
    assert pending.apply(logits).failures == {}
    value = 2.0 if mode == "all" else 4.0  # the script returns logits as they are
    assert logits.tolist() == [[value] * VOCAB] * 2
    assert (server.on_engine, server.on_server) == (({0, 1}, set()) if mode == "all" else (set(), {0, 1}))
    assert run(session, other, entered)[1] == [[value] * VOCAB] * 2


def test_a_server_that_ends_while_programs_of_an_entering_request_are_fetched(opened_on: Any) -> None:
    session, (first, second) = opened_on(2)
    first.ends_at = "get_programs"
    (entered,) = session.enter([HALF])
    assert run(session, entered)[1] == [[2.0] * VOCAB]
    assert (session.reconnects, second.on_engine) == (1, {0})


def test_a_program_of_an_entering_request_that_is_refused(opened_on: Any) -> None:
    session, (server,) = opened_on(1)
    server.program = MIN_P  # has no parameter "temperature"
    (entered,) = session.enter([HALF])
    result, logits = run(session, entered, check=False)
    assert {one: type(error) for one, error in result.failures.items()} == {entered: InvalidArgument}
    assert kinds(server.script)[-3:] == ["get_programs", "remove", "step"], "the server has computed the step with it"
    assert (server.on_engine, logits) == (set(), [[4.0] * VOCAB])


def test_a_program_that_is_refused_after_a_reconnect(opened_on: Any) -> None:
    session, (first, second) = opened_on(2)
    second.program = MIN_P  # has no parameter "temperature"
    handle, other = session.add(HALF), session.add(Request([1], processors=[("half", {})]))
    first.end()
    result, _ = run(session, handle, other, check=False)
    assert {one: type(error) for one, error in result.failures.items()} == {
        handle: InvalidArgument,
        other: InvalidArgument,
    }
    assert second.on_engine == set()


def test_edits_after_more_programs_than_a_request_has(opened_on: Any) -> None:
    session, (server,) = opened_on(1)
    handle = session.add(HALF)
    later = [processing_pb2.StepEdits().edits] * 2
    correct = server.answer
    server.script.answer = lambda frame: (
        {"edits": processing_pb2.StepEdits(later_edits=later)} if frame.HasField("step") else correct(frame)
    )
    with pytest.raises(LogitportError, match="later_edits"):
        run(session, handle)


def test_failed_requests_that_were_removed_are_forgotten(opened_on: Any) -> None:
    session, (server,) = opened_on(1)
    server.program = build_root()
    handle = session.add(Request([1], processors=[("root", {})]))
    pending = session.step({handle: []})
    session.remove(handle)
    with pytest.raises(RequestsFailed):
        pending.apply(np.full((1, VOCAB), -4, np.float32))
    assert session._requests.table.lost == {}


def test_a_request_that_is_skipped_remains_on_the_server(opened_on: Any) -> None:
    session, (server,) = opened_on(1)
    server.program = build_root()
    handle = session.add(Request([1], processors=[("root", {})], on_error="skip"))
    for logit, wanted in ((-4, -4), (4, 2)):
        logits = np.full((1, VOCAB), logit, np.float32)
        session.step({handle: []}).apply(logits)
        assert np.unique(logits).tolist() == [wanted]
    assert kinds(server.script) == ["open", "add", "get_programs", "step", "step"]
