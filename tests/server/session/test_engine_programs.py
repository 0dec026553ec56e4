"""Programs in sessions: run by the engine, with the edits of other processors around them, or by the server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import (
    EditProcessor,
    EditRequest,
    Edits,
    History,
    InvalidArgument,
    LimitExceeded,
    LogitportError,
    NotFound,
    ProcessorFailed,
    Request,
    RowEdits,
)
from logitport.core import tensors
from logitport.ops import apply_edits
from logitport.payload import Payload, Signature
from logitport_programs.program import Parameter, Program
from logitport_programs.request_tokens import RequestTokens
from logitport_programs.runtime.program_runner import Runner
from logitport_programs.types import Element
from logitport_proto import common_pb2, processing_pb2
from logitport_session.dialects.program_dialect import ProgramDialect
from logitport_session.engine_session import session_steps
from logitport_session.processor_sources.source import Source
from logitport_session.requests.active_request import ActiveRequest, ChainEntry
from logitport_session.requests.loaded_processors import LoadedProcessors
from logitport_session.steps import step as step_module
from logitport_session.steps.engine_programs import write_programs
from logitport_session.trust.principals import ANONYMOUS
from tests.programs.runtime import build
from tests.server.conftest import AddOutputs, CountCalls, DenyHistory, EngineRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCAB = 10
MIN_P, PENALTY, TEMPERATURE = build.min_p(), build.repetition_penalty(3), build.temperature()
PROGRAMS = {verified.program.digest: verified for verified in (MIN_P, PENALTY, TEMPERATURE)}
P = ("min_p", {"min_p": 0.3})
R = ("penalty", {"penalty": 2.0})
T = ("temperature", {"temperature": 0.5})
DENY, ADD = ("DenyHistory", {}), ("AddOutputs", {})


class Deny(EditProcessor):
    """Denies the parameter `ids`; raises after as many new ids as the parameter `fails_after`."""

    def advance(self, request: EditRequest, token_id: int) -> None:
        if len(request.history.output_token_ids) == request.params.get("fails_after"):
            raise ValueError("boom")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.params["ids"])


class Bias(EditProcessor):
    """Adds the parameter `added` to id 0."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.bias([0], [request.params["added"]])


def deny(*ids: int, **params: Any) -> tuple[str, dict[str, Any]]:
    return "Deny", {"ids": list(ids), **params}


@pytest.fixture
def open_session(open_engine: Any) -> Any:
    """Opens a session that knows three programs; the engine runs programs by default."""

    def opened(*, runs_programs: bool = True, vocab_size: int = VOCAB, **options: Any) -> Any:
        toys = (DenyHistory, AddOutputs, CountCalls, Deny, Bias)
        engine = open_engine(vocab_size, *toys, runs_programs=runs_programs, max_draft_tokens=4, **options)
        engine.registry.toys |= {"min_p": MIN_P, "penalty": PENALTY, "temperature": TEMPERATURE} | PROGRAMS
        return engine

    return opened


def admit(engine: Any, slot: int, *chain: Any, **fields: Any) -> tuple[EngineRequest, processing_pb2.RequestsAdded]:
    prompt = fields.pop("prompt", [1, 2])
    on_server = fields.pop("programs_on_server", False)
    known = EngineRequest(slot, 0, Request(tuple(prompt), processors=chain, **fields), [*prompt], on_server)
    reply = engine.send_add(known, in_background=False)
    assert not reply.failures, reply.failures
    return known, reply


def denied(edits: common_pb2.Edits, rows: int) -> list[list[int]]:
    logits = np.zeros((rows, VOCAB), np.float32)
    apply_edits(Edits.from_proto(edits, rows, VOCAB), logits)
    return [np.flatnonzero(row == -np.inf).tolist() for row in logits]


def finish(
    reply: processing_pb2.StepEdits,
    logits: torch.Tensor,
    rows: Sequence[tuple[EngineRequest, Sequence[int]]],
    programs: dict[EngineRequest, Sequence[str]],
) -> None:
    """Do what an engine does: apply the edits, and run the programs between them. Each row has a request and drafts."""
    parts = [reply.edits, *reply.later_edits]
    most = max(sum(map(bool, digests)) for digests in programs.values())
    for part in range(max(most, len(parts) - 1) + 1):
        if part < len(parts):
            apply_edits(Edits.from_proto(parts[part], len(logits), VOCAB), logits)
        for index, (known, drafts) in enumerate(rows):
            places = [place for place, digest in enumerate(programs[known]) if digest]
            if part >= len(places):
                continue
            place = places[part]
            prompt = known.request.prompt_token_ids
            history = History(prompt, [*known.history[len(prompt) :], *drafts])
            params = known.request.processors[place][1]  # type: ignore[index]
            verified = PROGRAMS[programs[known][place]]
            Runner().apply(verified, logits, [index], [params], [RequestTokens(history)])


def test_the_engine_runs_the_programs_of_a_chain(open_session: Any) -> None:
    engine = open_session()
    known, reply = admit(engine, 0, DENY, P, T)
    assert (reply.reads_logits, len(engine.session)) == (b"\0", 1)
    (chain,) = reply.chains
    digests = [MIN_P.program.digest, TEMPERATURE.program.digest]
    assert [*chain.processors] == ["DenyHistory", *digests]
    assert [*chain.programs] == ["", *digests]
    step = engine.step({known: [3]})
    assert (step.logits_rows, len(step.later_edits)) == (b"", 0)
    assert denied(step.edits, 1) == [[1, 2, 3]]
    assert {one.processor: one.rows for one in step.applied} == dict.fromkeys(["DenyHistory", *digests], 1)
    with pytest.raises(InvalidArgument, match="requested no logits"):
        engine.process(1)


@pytest.mark.parametrize(
    ("chain", "options", "fields"),
    [
        ([DENY, P], {"runs_programs": False}, {}),
        ([DENY, P], {}, {"programs_on_server": True}),
        ([P, ADD], {}, {}),
        ([ADD, DENY, T, P], {}, {}),
    ],
)
def test_the_server_runs_the_programs(open_session: Any, chain: Any, options: Any, fields: Any) -> None:
    engine = open_session(**options)
    known, reply = admit(engine, 0, *chain, **fields)
    assert reply.reads_logits == b"\1"
    assert [*reply.chains[0].programs] == []
    step = engine.step({known: [3]})
    assert step.logits_rows == np.int32(0).tobytes()
    assert (len(step.edits.rows), len(step.later_edits)) == (0, 0)
    _, processed = engine.process(1)
    assert {one.rows for one in processed.applied} == {1}
    assert len(processed.applied) == len(chain)


def test_rows_without_an_allowed_id_are_those_of_all_edits(open_session: Any) -> None:
    engine = open_session()
    full, _ = admit(engine, 0, deny(*range(5)), P, deny(*range(5, VOCAB)))
    other, _ = admit(engine, 1, deny(*range(5)), P, deny(*range(5, VOCAB - 1)))
    assert engine.step({other: [], full: []}).all_denied_rows == np.int32(1).tobytes()
    assert engine.step({other: []}).all_denied_rows == b""


CHAINS = [
    [DENY, P, ("Bias", {"added": 3.0}), R],
    [R, deny(0, 4)],
    [T, ("Bias", {"added": -1.0}), P, deny(3)],
    [deny(2, 3)],
]


@pytest.mark.parametrize("drafted", [False, True])
def test_both_ways_have_equal_results(open_session: Any, drafted: bool) -> None:
    own, server = open_session(), open_session(runs_programs=False)
    known = [admit(own, slot, *chain, prompt=[slot, 5]) for slot, chain in enumerate(CHAINS)]
    others = [admit(server, slot, *chain, prompt=[slot, 5])[0] for slot, chain in enumerate(CHAINS)]
    programs = {one: [*reply.chains[0].programs] for one, reply in known}
    mine = [one for one, _ in known]
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        drafts = [[6, 7], [8], [], [9]] if drafted else [[], [], [], []]
        offsets = [(slot, offset) for slot, ids in enumerate(drafts) for offset in range(len(ids) + 1)]
        columns = {
            "row_requests": np.array([slot for slot, _ in offsets], "<i4").tobytes(),
            "row_draft_offsets": np.array([offset for _, offset in offsets], "<i4").tobytes(),
        }
        results = []
        logits = torch.randn(len(offsets), VOCAB, generator=generator)
        for engine, requests in ((own, mine), (server, others)):
            drafts_of = {one: ids for one, ids in zip(requests, drafts, strict=True) if ids}
            reply = engine.step({one: [step, 1] for one in requests}, drafts_of, **columns)
            assert not reply.failures
            result = logits.clone()
            if engine is own:
                assert not reply.logits_rows
                rows = [(mine[slot], drafts[slot][:offset]) for slot, offset in offsets]
                finish(reply, result, rows, programs)
            else:
                requested = np.frombuffer(reply.logits_rows, "<i4").tolist()
                message, edited = processing_pb2.StepLogits(), processing_pb2.StepLogitsEdited()
                tensors.write(message.logits, logits[requested])
                session_steps.edit_logits(engine.session, message, edited)
                assert not edited.failures
                apply_edits(Edits.from_proto(reply.edits, len(offsets), VOCAB), result)
                result[requested] = tensors.to_torch(edited.logits)
            results.append(result)
        assert torch.equal(*results)


@pytest.mark.parametrize("on_error", ["skip", "abort"])
@pytest.mark.parametrize(
    ("place", "failing", "error"),
    [
        (0, deny(9, fails_after=1), ProcessorFailed),
        (2, deny(9, fails_after=1), ProcessorFailed),
        (2, deny(VOCAB), InvalidArgument),
    ],
)
def test_a_request_that_fails_beside_its_program(
    open_session: Any, on_error: Any, place: int, failing: Any, error: type[LogitportError]
) -> None:
    engine = open_session()
    chain = [deny(4), P, deny(5)]
    chain[place] = failing
    wrong, _ = admit(engine, 0, *chain, on_error=on_error)
    other, _ = admit(engine, 1, deny(6), P, deny(7))
    step = engine.step({wrong: [3], other: [3]})
    assert engine.failures(step) == {0: (error, on_error == "skip")}
    assert denied(step.edits, 2) == [[], [6]]
    assert [denied(edits, 2) for edits in step.later_edits] == [[[], [7]]]
    assert {one.processor: one.rows for one in step.applied} == {"Deny": 2, MIN_P.program.digest: 1}
    step = engine.step({wrong: [4], other: [4]})
    assert (0 in engine.failures(step)) == (on_error == "abort" or error is InvalidArgument)


def test_a_replaced_request_keeps_its_programs(open_session: Any) -> None:
    engine = open_session()
    known, reply = admit(engine, 0, DENY, R, deny(9))
    before = reply.chains[0]
    known.history.append(4)
    assert engine.failures(engine.step({known: []})) == {0: (LogitportError, False)}
    engine.registry.toys.clear()
    chain = zip(before.processors, known.request.processors, strict=True)
    known.request = Request([1, 2], processors=[(name, params) for name, (_, params) in chain])  # type: ignore[misc]
    again = engine.send_add(known, in_background=False)
    assert [*again.chains] == [before]
    assert again.reads_logits == b"\0"
    step = engine.step({known: []})
    assert (denied(step.edits, 1), denied(step.later_edits[0], 1)) == ([[1, 2, 4]], [[9]])


def test_a_replaced_request_changes_where_its_programs_run(open_session: Any) -> None:
    engine = open_session()
    known, _ = admit(engine, 0, R)
    expected = torch.ones(1, VOCAB)
    history = RequestTokens(History([1, 2], [4]))
    Runner().apply(PENALTY, expected, slice(None), [{"penalty": 2.0}], [history])
    known.history.append(4)
    for on_server in (True, False, True):
        known.programs_on_server = on_server
        reply = engine.send_add(known, in_background=False)
        assert reply.reads_logits == bytes([on_server])
        assert [*reply.chains[0].programs] == ([] if on_server else [PENALTY.program.digest])
        step = engine.step({known: []})
        assert bool(step.logits_rows) == on_server
        if on_server:
            message, edited = processing_pb2.StepLogits(), processing_pb2.StepLogitsEdited()
            tensors.write(message.logits, torch.ones(1, VOCAB))
            session_steps.edit_logits(engine.session, message, edited)
            assert torch.equal(tensors.to_torch(edited.logits), expected)


def test_an_admission_in_the_background(open_session: Any, submitted: Any) -> None:
    engine = open_session(submit=submitted)
    known, reply = engine.begin_add(0, [ADD, *[P]])
    other, second = engine.begin_add(1, [DENY, P, deny(9)])
    assert (reply.pending, second.pending) == (b"\1", b"\1")
    submitted.run()
    submitted.run()
    ended = {one.slot: one for one in engine.send_add(in_background=True).ended}
    assert (ended[0].reads_logits, [*ended[0].chain.programs]) == (True, [])
    assert (ended[1].reads_logits, [*ended[1].chain.programs]) == (False, ["", MIN_P.program.digest, ""])
    step = engine.step({known: [], other: []})
    assert step.logits_rows == np.int32(0).tobytes()
    assert denied(step.later_edits[0], 2) == [[], [9]]


def test_a_row_that_fails_on_the_server(open_session: Any) -> None:
    engine = open_session(runs_programs=False)
    write = build.Writer()
    write("divide", write("logits"), write.parameter("by"))
    divide = write.verified(Parameter("by", Element.FLOAT32, 1.0, 0.0, 9.0), name="divide")
    engine.registry.toys["divide"] = divide
    requests = [
        admit(engine, slot, ("divide", {"by": by}), on_error=on_error)[0]
        for slot, (by, on_error) in enumerate([(2.0, "abort"), (0.0, "abort"), (0.0, "skip"), (1.0, "abort")])
    ]
    engine.step({one: [] for one in requests})
    logits, reply = engine.process(4)
    assert engine.failures(reply) == {1: (ProcessorFailed, False), 2: (ProcessorFailed, True)}
    assert logits[[0, 2, 3]].eq(0).all()
    assert [(one.processor, one.rows) for one in reply.applied] == [(divide.program.digest, 2)]


def test_programs_have_the_time_of_shipped_code(open_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first program takes long; it has processed its rows, and the second one is not called."""
    engine = open_session(runs_programs=False)
    slow, later = admit(engine, 0, T, on_error="skip")[0], admit(engine, 1, ADD, ADD, R)[0]
    engine.step({slow: [], later: []})
    monkeypatch.setattr(step_module, "perf_counter", iter([0.0, 1000.0] * 8).__next__)
    monkeypatch.setattr("logitport_session.steps.step_time._GRACE_SECONDS", 0.0)
    engine.step({slow: [], later: []})
    logits, reply = engine.process(2)
    assert engine.failures(reply) == {1: (ProcessorFailed, False)}
    assert logits[0].tolist() == [0.0] * VOCAB


def test_requests_of_tenants_share_a_call(open_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_session(runs_programs=False)
    requests = [admit(engine, slot, T, tenant=tenant)[0] for slot, tenant in enumerate(("a", "b", ""))]
    calls = []
    run = Runner.apply
    monkeypatch.setattr(Runner, "apply", lambda self, *a, **b: (calls.append(a), run(self, *a, **b))[1])
    engine.step({one: [] for one in requests})
    engine.process(3)
    assert len(calls) == 1


def get(engine: Any, *digests: str) -> list[bytes]:
    reply = processing_pb2.Programs()
    engine.session.get_programs(processing_pb2.GetPrograms(digests=digests), reply)
    return [*reply.programs]


def test_get_programs(open_session: Any) -> None:
    engine = open_session()
    known, _ = admit(engine, 0, P, R)
    admit(engine, 1, T, programs_on_server=True)
    one, two = MIN_P.program, PENALTY.program
    assert get(engine, two.digest, one.digest, two.digest) == [two.to_bytes(), one.to_bytes(), two.to_bytes()]
    assert Program.from_bytes(get(engine, one.digest)[0]) == one
    assert get(engine) == []
    for unknown in ("0" * 64, "", "min_p", TEMPERATURE.program.digest, one.digest.upper()):
        with pytest.raises(NotFound, match="runs no program"):
            get(engine, one.digest, unknown)
    engine.remove(known)
    with pytest.raises(NotFound):
        get(engine, one.digest)


def test_programs_that_do_not_fit_into_a_reply(open_session: Any) -> None:
    engine = open_session(max_message_bytes=1 << 16)
    admit(engine, 0, P)
    number = (1 << 16) // len(MIN_P.program.to_bytes())
    with pytest.raises(LimitExceeded, match="--max-message-bytes"):
        get(engine, *[MIN_P.program.digest] * number)
    assert len(get(engine, *[MIN_P.program.digest] * (number // 2))) == number // 2


SIGNATURE = Signature("0" * 64, "", 1 << 32, bytes(64))


def test_a_request_has_its_own_signature_for_a_program_that_others_ship_too() -> None:
    sent: list[Signature | None] = []

    def resolve(*_: Any) -> Source:
        shipped = Payload(
            TEMPERATURE.program.to_bytes(), TEMPERATURE.program.digest, signature=sent[-1], is_program=True
        )
        return Source(TEMPERATURE.program.digest, payload=shipped, program=TEMPERATURE)

    def load(source: Source) -> ProgramDialect:
        assert source.program is not None
        return ProgramDialect(source.program, source.display_name, source.signature)

    registry: Any = SimpleNamespace(resolve=resolve)
    executor: Any = SimpleNamespace(load=load)
    loaded = LoadedProcessors(registry, executor, ANONYMOUS)
    found = []
    for signature in (None, SIGNATURE, None, SIGNATURE):
        sent.append(signature)
        found.append(loaded.load(common_pb2.Processor(), "", 0))
    assert [dialect.signature for dialect in found] == sent
    assert found[:2] == found[2:]

    requests = [
        ActiveRequest(slot, 0, History([1]), [ChainEntry(dialect.for_engine() or dialect, None)], skip=False)
        for slot, dialect in enumerate(found[:3])
    ]
    reply = processing_pb2.Programs()
    write_programs(requests, [TEMPERATURE.program.digest], 1 << 20, reply)
    assert b'"expires"' in reply.signatures[0]
