"""Requests that are admitted in the background: pending, ended, cancelled, replaced."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from logitport import (
    CustomLogitProcessor,
    EditProcessor,
    EditRequest,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    Request,
    RowEdits,
)
from logitport_proto import processing_pb2
from logitport_session.admissions import pending_admissions
from logitport_session.engine_session import session_admissions
from tests.server.conftest import EngineRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

VOCAB = 10
DENY, ADD, COUNT = [("DenyHistory", {})], [("AddOutputs", {})], [("CountCalls", {})]


class Checked(CustomLogitProcessor):
    """Refuses requests with the parameter `refuse`."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        if params.get("refuse"):
            raise InvalidArgument("refuse is set")

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits.add_(1)


class Fast(EditProcessor):
    """Does nothing."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        pass


def test_steps_are_answered_while_an_admission_is_pending(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    running = engine.add(0, DENY, [1])
    new, reply = engine.begin_add(1, ADD)
    assert (reply.pending, reply.reads_logits, [*reply.chains[0].processors]) == (b"\1", b"\0", [])
    step = engine.step({running: [2]})
    assert engine.denied(step, 1) == [[1, 2]]
    assert step.ended_admissions == 0
    assert (len(engine.session), engine.session.pending) == (1, 1)
    assert engine.failures(engine.step({new: []})) == {1: (NotFound, False)}
    submitted.run()
    assert engine.failures(engine.step({new: []})) == {1: (NotFound, False)}, "it was not reported"
    assert engine.step({running: [3]}).ended_admissions == 1
    (ended,) = engine.send_add(in_background=True).ended
    assert (ended.slot, ended.generation, ended.reads_logits) == (1, 0, True)
    assert ([*ended.chain.processors], ended.HasField("error")) == (["AddOutputs"], False)
    assert (len(engine.session), engine.session.pending) == (2, 0)
    assert engine.poll() == {}, "each admission is reported once"
    step = engine.step({running: [], new: [7]})
    assert (step.failures, step.ended_admissions) == ([], 0)
    assert engine.process(1)[0].tolist() == [[1.0] * VOCAB]


@pytest.mark.parametrize(
    ("processors", "is_fast"), [([], True), (DENY, True), ([*DENY, ("Fast", {})], True), ([*DENY, *ADD], False)]
)
def test_requests_of_fast_built_ins_alone_are_admitted_at_once(
    open_engine: Any, submitted: Any, processors: Any, is_fast: bool
) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    engine.registry.toys["Fast"] = Fast
    _, reply = engine.begin_add(0, processors)
    assert (reply.pending, reply.failures) == (b"" if is_fast else b"\1", [])
    assert (len(engine.session), len(submitted)) == (is_fast, not is_fast)


def test_the_columns_of_a_frame_with_several_requests(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    chains = [DENY, ADD, ADD, [("DenyHistory", {"refuse": True})]]
    known = [EngineRequest(slot, 9, Request([1], processors=chain), [1]) for slot, chain in enumerate(chains)]
    known[1].history.append(VOCAB)
    reply = engine.send_add(*known, in_background=True)
    assert reply.pending == b"\0\0\1\0"
    assert [*map(len, (one.processors for one in reply.chains))] == [1, 0, 0, 0]
    assert engine.failures(reply) == {1: (InvalidArgument, False), 3: (InvalidArgument, False)}


def test_other_frames_report_nothing(open_engine: Any, submitted: Any) -> None:
    """An engine that knows nothing of the background, or adds histories again, gets no reports."""
    engine = open_engine(VOCAB, submit=submitted)
    engine.begin_add(0, ADD)
    submitted.run()
    assert list(engine.send_add(in_background=False).ended) == []
    assert engine.poll() == {(0, 0): None}


def test_pending_chains_take_limited_memory(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted, max_message_bytes=1 << 16)
    large = [("AddOutputs", {"text": "x" * 40_000})]
    first, reply = engine.begin_add(0, large)
    assert reply.pending == b"\1"
    _, reply = engine.begin_add(1, large)
    assert (reply.pending, reply.failures, len(engine.session)) == (b"", [], 1), "admitted before the reply"
    assert engine.begin_add(2, ADD)[1].pending == b"\1"
    engine.remove(first)
    assert engine.begin_add(3, large)[1].pending == b"\1"


def test_histories_are_charged_while_they_wait(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted, max_principal_memory=1 << 20)
    account = engine.session.account
    first, _ = engine.begin_add(0, ADD, [1] * 100_000)
    assert account.held > 400_000
    assert engine.failures(engine.begin_add(1, ADD, [1] * 100_000)[1]) == {1: (LimitExceeded, False)}
    engine.remove(first)
    submitted.calls.clear()
    assert account.held == 0


def test_a_refused_request_keeps_no_memory_until_it_is_reported(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, Checked, submit=submitted)
    engine.begin_add(0, [("Checked", {"refuse": True})], [1] * 100_000)
    submitted.run()
    assert engine.session.account.held == 0
    assert engine.poll() == {(0, 0): InvalidArgument}


def test_a_pending_request_does_not_keep_its_frame(open_engine: Any, submitted: Any) -> None:
    """A part of a message keeps the memory of the whole message, so it must be copied: it then does not change."""
    engine = open_engine(VOCAB, submit=submitted)
    frame = processing_pb2.AddRequests(in_background=True)
    frame.requests.append(EngineRequest(0, 0, Request([1], processors=ADD)).to_proto())
    session_admissions.add(engine.session, frame, processing_pb2.RequestsAdded())
    del frame.requests[0].request.processors[:]
    submitted.run()
    (ended,) = engine.send_add(in_background=True).ended
    assert list(ended.chain.processors) == ["AddOutputs"]


def test_a_request_in_use_is_replaced_at_once(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    known = engine.add(0, ADD)
    known.history.append(5)
    assert engine.send_add(known, in_background=True).pending == b""
    engine.step({known: []})
    assert engine.process(1)[0][0, 0] == 1


@pytest.mark.parametrize("in_background", [True, False])
def test_the_same_generation_again_replaces_a_pending_request(
    open_engine: Any, submitted: Any, in_background: bool
) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    known, _ = engine.begin_add(0, ADD)
    known.history.append(4)
    reply = engine.send_add(known, in_background=in_background)
    assert reply.pending == (b"\1" if in_background else b"")
    assert len(submitted) == in_background
    if in_background:
        submitted.run()
    assert engine.poll() == ({(0, 0): None} if in_background else {})
    engine.step({known: []})
    assert engine.process(1)[0][0, 0] == 1


def test_a_removed_request_that_is_being_admitted_is_not_reported(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    first, _ = engine.begin_add(0, ADD, tenant="a")
    work, end = submitted.begin()
    engine.remove(first)
    engine.begin_add(0, COUNT, generation=1, tenant="b")
    work()
    end()
    assert engine.poll() == {}
    submitted.run()
    assert engine.poll() == {(0, 1): None}
    assert engine.failures(engine.step({first: []})) == {0: (NotFound, False)}


def test_a_refused_replacement_leaves_the_pending_request(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    known, _ = engine.begin_add(0, ADD)
    with pytest.raises(InvalidArgument):
        engine.add(0, ADD, [VOCAB])
    with pytest.raises(InvalidArgument, match="generation 0"):
        engine.add(0, DENY, generation=1)
    assert engine.failures(engine.begin_add(0, ADD, generation=1)[1]) == {0: (InvalidArgument, False)}
    engine.remove(engine.unknown(0, 5))
    submitted.run()
    assert engine.poll() == {(0, 0): None}
    assert engine.failures(engine.step({known: []})) == {}


def test_a_closed_session_waits_for_nothing(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    for slot, tenant in enumerate(["a", "a", "b", "c"]):
        engine.begin_add(slot, ADD, tenant=tenant)
    submitted.run(2)
    work, end = submitted.begin()
    engine.session.close()
    work()
    end()
    assert (engine.session.pending, len(submitted)) == (0, 0)


def test_admissions_of_a_tenant_run_in_order(open_engine: Any, submitted: Any) -> None:
    """They would use up their time limits while they wait for the same worker."""
    engine = open_engine(VOCAB, submit=submitted)
    known = [engine.begin_add(slot, ADD, tenant=tenant)[0] for slot, tenant in enumerate("aaab")]
    assert len(submitted) == 2
    submitted.run(1)
    assert engine.poll() == {(3, 0): None}
    engine.remove(known[1])
    submitted.run()
    assert engine.poll() == {(0, 0): None}
    submitted.run()
    assert engine.poll() == {(2, 0): None}
    assert len(submitted) == 0


def test_waiting_admissions_are_counted_and_their_waits_measured(
    open_engine: Any, submitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([1.0, 2.0, 10.0, 20.0])
    monkeypatch.setattr(pending_admissions, "time", SimpleNamespace(monotonic=now.__next__))
    engine = open_engine(VOCAB, submit=submitted)
    for slot in range(2):
        engine.begin_add(slot, ADD)
    assert engine.session.pending_admissions.waiting == 2
    submitted.run(0)
    assert (engine.session.pending_admissions.waiting, engine.session.pending) == (1, 2)
    engine.poll()
    assert engine.admitted.queue_seconds == [9.0]
    submitted.run(0)
    engine.poll()
    assert engine.admitted.queue_seconds == [18.0]
    assert engine.session.pending_admissions.waiting == 0
    engine.poll()
    assert engine.admitted.queue_seconds == []


def test_slots_bound_the_pending_requests(open_engine: Any, submitted: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    for generation in range(100):
        for slot in range(4):
            known, reply = engine.begin_add(slot, ADD, generation=generation)
            assert reply.pending == b"\1"
            if slot:
                engine.remove(known)
        assert engine.failures(engine.begin_add(4, ADD)[1]) == {4: (InvalidArgument, False)}
        assert (engine.session.pending, len(submitted)) == (1, 1)
        engine.remove(engine.unknown(0, generation))
    assert not engine.session.pending_admissions._queues


def test_processors_of_the_servers_process_start_between_the_steps(open_engine: Any, submitted: Any) -> None:
    """Their instance also serves the running rows, and is not thread-safe."""
    started: list[threading.Thread] = []

    class Starts(EditProcessor):
        takes_long = True

        def start(self, request: EditRequest) -> None:
            started.append(threading.current_thread())
            if request.params.get("raise"):
                raise ValueError("boom")

        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            pass

    engine = open_engine(VOCAB, Starts, submit=submitted)
    for slot, params in enumerate([{}, {"raise": True}]):
        engine.begin_add(slot, [("Starts", params)])
    for _ in range(2):
        thread = threading.Thread(target=submitted.run)
        thread.start()
        thread.join()
    assert started == []
    errors = [*engine.poll().values()]
    assert started == [threading.current_thread()] * 2
    assert [error and error.__name__ for error in errors] == [None, "ProcessorFailed"]
    assert len(engine.session) == 1


def test_requests_with_the_same_processor_share_its_instance(open_engine: Any, submitted: Any) -> None:
    """Two admissions may load it at the same time."""
    engine = open_engine(VOCAB, submit=submitted)
    known, _ = engine.begin_add(0, ADD)
    processors = engine.session.processors
    (processor,) = [call.processor for call in known.to_proto().request.processors]
    load = processors._loader.load
    meanwhile = []

    def load_in_both(source: Any) -> Any:
        if not meanwhile:
            meanwhile.append(None)
            meanwhile.append(processors.load(processor, "", 0))
        return load(source)

    processors._loader.load = load_in_both
    submitted.run()
    assert engine.poll() == {(0, 0): None}
    assert engine.session.batch.requests[0].chain[0].dialect is meanwhile[1]


def test_a_defect_ends_one_admission(open_engine: Any, submitted: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    engine.begin_add(0, ADD)

    def broken() -> NoReturn:
        raise ZeroDivisionError

    engine.session.pending_admissions._by_slot[0].load = broken
    submitted.run()
    assert engine.poll() == {(0, 0): LogitportError}
    assert "the admission of slot 0 failed because of a defect of the server" in caplog.text


def test_a_defect_while_an_admission_is_reported_loses_no_other_one(
    open_engine: Any, submitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    for slot in range(2):
        engine.begin_add(slot, ADD)
    for _ in range(2):  # the second one begins when the first one has ended
        submitted.run()
    joined = []

    def join(_: Any, request: Any, *__: Any) -> None:
        joined.append(request.slot)
        if request.slot == 0:
            raise ZeroDivisionError

    monkeypatch.setattr(session_admissions, "_join", join)
    failed, admitted = engine.send_add(in_background=True).ended
    assert "a defect of the server: ZeroDivisionError" in failed.error.message
    assert (joined, admitted.slot, admitted.HasField("error")) == ([0, 1], 1, False)


def test_admissions_that_cannot_begin_are_refused(open_engine: Any) -> None:
    def refuse(principal: str, work: Any) -> NoReturn:
        raise RuntimeError("the server is shutting down")

    engine = open_engine(VOCAB, submit=refuse)
    _, reply = engine.begin_add(0, ADD)
    assert [one.slot for one in reply.ended] == [0]
    assert engine.begin_add(0, ADD, generation=1)[1].ended[0].error.message.startswith("the admission cannot begin")
    assert (len(engine.session), engine.session.pending) == (0, 0)


def test_the_work_is_charged_to_the_principal(submitted: Any, open_engine: Any) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    engine.begin_add(0, ADD)
    assert [principal for principal, _, _ in submitted.calls] == [engine.session.principal.name]
