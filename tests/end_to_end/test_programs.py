"""Programs give the same rows wherever they run: on the engine's own logits, or on the server."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch

from logitport import (
    Client,
    Float,
    InvalidArgument,
    LimitExceeded,
    PayloadError,
    ProcessorFailed,
    Request,
    RequestsFailed,
    TensorProcessor,
    payload,
)
from logitport.core.history import History
from logitport_programs.parameters import check_params
from logitport_programs.program import MAX_BYTES, Program, Value
from logitport_programs.reference import run
from logitport_programs.types import Element, Size
from tests.programs.runtime import build
from tests.programs.samplers import MinP
from tests.toy_processors import AddOne, FailsAfterZero, Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from logitport.session import Handle, Session
    from tests.conftest import RunningServer

VOCAB = 48
INF = float("inf")
TEMPERATURE, MIN_P, GATE, PENALTY = (
    build.temperature(),
    build.min_p(),
    build.entropy_gate(),
    build.repetition_penalty(8),
)
PROGRAMS = (TEMPERATURE, MIN_P, GATE, PENALTY)
NGRAM = ("no_repeat_ngram", {"ngram_size": 2})
Chain = list[tuple[Any, dict[str, Any]]]
CHAINS: list[Chain] = [
    [],
    [("disallowed_tokens", {"token_ids": [1, 5]})],
    [(MIN_P.program, {"min_p": 0.2})],
    [(MIN_P.program, {"min_p": 0.02})],
    [
        ("disallowed_tokens", {"token_ids": [2]}),
        (TEMPERATURE.program, {"temperature": 0.5}),
        NGRAM,
        (PENALTY.program, {"penalty": 1.5}),
    ],
    [(PENALTY.program, {"penalty": 2.0}), (GATE.program, {}), (MIN_P.program, {"min_p": 0.1})],
    [(TEMPERATURE.program, {}), (AddOne, {}), (MIN_P.program, {"min_p": 0.1})],
]


def sqrt_of_logits() -> Any:
    """NaN for rows with a negative logit."""
    write = build.Writer()
    write("sqrt", write("logits"))
    return write.verified(name="sqrt").program


SQRT = sqrt_of_logits()


def expected_row(chain: Chain, prompt: Sequence[int], output: Sequence[int], row: Any) -> Any:
    """Run a chain in this process, one processor after the other."""
    ids = [*prompt, *output]
    for processor, params in chain:
        if processor == "disallowed_tokens":
            row[params["token_ids"]] = -INF
        elif processor == "no_repeat_ngram":
            row[[after for before, after in itertools.pairwise(ids) if before == ids[-1]]] = -INF
        elif processor is AddOne:
            row = row + 1
        else:
            verified = next(one for one in PROGRAMS if one.program is processor)
            parameters = verified.program.parameters
            values = zip(parameters, check_params(parameters, params), strict=True)
            given = {parameter.name: [value] for parameter, value in values}
            row = run(verified, row[None], given, [History(prompt, output)])[0]
    return row


def opened(client: Client, where: str, transport: Literal["grpc", "local"] = "local", **options: Any) -> Session:
    dtype = torch.float32 if "torch" in where else "float32"
    programs: Any = "off" if "server" in where else "all"
    return client.session(vocab_size=VOCAB, dtype=dtype, transport=transport, programs=programs, **options)


WHERE = ["engine, torch", "engine, numpy", "server, torch"]
everywhere = pytest.mark.parametrize("where", WHERE)


@everywhere
@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_random_sessions_equal_the_interpreter(client: Client, where: str, transport: Any) -> None:
    random = np.random.default_rng(len(where))
    tokens: dict[Handle, tuple[Chain, list[int], list[int]]] = {}
    entered = 0
    with opened(client, where, transport, max_draft_tokens=3) as session:
        for _ in range(50):
            if len(tokens) < 8 and random.random() < 0.6:
                chain = CHAINS[random.integers(len(CHAINS))]
                prompt = random.integers(VOCAB, size=random.integers(1, 10)).tolist()
                request = Request(prompt, processors=chain)
                add = random.integers(3)
                if add == 0:
                    (handle,) = session.enter([request])
                    entered += 1
                else:
                    handle = session.add(request) if add == 1 else session.begin_add([request])[0].result(30)
                    assert handle.sends_logits == any(
                        processor is AddOne or ("server" in where and processor in [one.program for one in PROGRAMS])
                        for processor, _ in chain
                    )
                tokens[handle] = chain, prompt, []
            elif tokens and random.random() < 0.2:
                gone = list(tokens)[random.integers(len(tokens))]
                session.remove(gone)
                del tokens[gone]
            elif tokens and random.random() < 0.2:
                handle = list(tokens)[random.integers(len(tokens))]
                _, prompt, output = tokens[handle]
                if not any(processor is AddOne for processor, _ in tokens[handle][0]):
                    del output[random.integers(len(output) + 1) :]
                    session.rewind(handle, len(prompt) + len(output))
            part = [handle for handle in tokens if random.random() < 0.8]
            new_ids = {handle: random.integers(VOCAB, size=random.integers(4)).tolist() for handle in part}
            drafts = {handle: random.integers(VOCAB, size=2).tolist() for handle in part if random.random() < 0.3}
            step = session.step(new_ids, drafts=drafts)
            rows = [(handle, offset) for handle in part for offset in range(1 + len(drafts.get(handle, ())))]
            logits = random.normal(scale=3, size=(len(rows), VOCAB)).astype(np.float32)
            got = torch.from_numpy(logits.copy()) if "torch" in where else logits.copy()
            result = step.apply(got)
            for handle in part:
                tokens[handle][2].extend(new_ids[handle])
            for row, (handle, offset) in enumerate(rows):
                chain, prompt, output = tokens[handle]
                wanted = expected_row(chain, prompt, output + drafts.get(handle, [])[:offset], logits[row].copy())
                np.testing.assert_array_equal(np.asarray(got[row]), wanted, err_msg=f"{chain} {offset}")
            with_chain = sum(len(tokens[handle][0]) for handle, _ in rows)
            assert sum(result.rows_applied.values()) == with_chain
        # A server that loads a class has not appended the ids of the step meanwhile.
        assert (session.resyncs <= entered, session.reconnects) == (True, 0)


@everywhere
@pytest.mark.parametrize("on_error", ["abort", "skip"])
def test_a_program_that_fails_fails_only_its_request(client: Client, where: str, on_error: Any) -> None:
    edited = ("disallowed_tokens", {"token_ids": [0]})
    with opened(client, where) as session:
        bad = session.add(Request([1], processors=[edited, (SQRT, {}), edited], on_error=on_error))
        good = session.add(Request([1], processors=[(SQRT, {})]))
        for step in range(2):
            logits = np.full((2, VOCAB), 4, np.float32)
            logits[0, 7] = -1
            before = logits.copy()
            got = torch.from_numpy(logits) if "torch" in where else logits
            result = session.step({bad: [1] if step else [], good: []}).apply(got, check=False)
            error = (result.failures if on_error == "abort" else result.skipped)[bad]
            assert isinstance(error, ProcessorFailed)
            assert "program sqrt returned NaN" in str(error) or "sqrt" in str(error)
            assert (result.failures | result.skipped).keys() == {bad}
            np.testing.assert_array_equal(logits[1], np.full(VOCAB, 2, np.float32))
            if on_error == "skip":
                np.testing.assert_array_equal(logits[0], before[0])
            assert list(result.rows_applied.values()) == [1]
        session.remove(bad)
        with pytest.raises(InvalidArgument, match=r"finish the step with apply\(logits\)"):
            session.step({good: []}).edits()


def test_a_request_with_on_error_skip_goes_on(client: Client) -> None:
    with opened(client, "engine, torch") as session:
        handle = session.add(Request([1], processors=[(SQRT, {})], on_error="skip"))
        for sign, wanted in ((-1, -4), (1, 2), (-1, -4)):
            logits = torch.full((1, VOCAB), 4.0 * sign)
            session.step({handle: []}).apply(logits)
            assert logits.unique().tolist() == [wanted]


@everywhere
@pytest.mark.parametrize("place", [0, 1])
def test_a_request_that_fails_beside_its_program_is_unchanged(client: Client, where: str, place: int) -> None:
    chain: Chain = [(TEMPERATURE.program, {"temperature": 2.0})]
    chain.insert(place, (FailsAfterZero, {}))
    with opened(client, where) as session:
        failing = session.add(Request([1], processors=chain, on_error="skip"))
        other = session.add(Request([1], processors=chain))
        for token_id, wanted in ((0, 4), (1, 2), (0, 4)):
            logits = np.full((2, VOCAB), 4, np.float32)
            result = session.step({failing: [token_id], other: [1]}).apply(
                torch.from_numpy(logits) if "torch" in where else logits
            )
            assert result.skipped.keys() == ({failing} if token_id == 0 else set())
            assert [set(row) for row in logits.tolist()] == [{wanted}, {2}]
            assert set(result.rows_applied.values()) == {1 if token_id == 0 else 2}


@everywhere
def test_an_unfit_parameter_fails_its_own_request(client: Client, where: str) -> None:
    program = build.shifted_by_int64().program
    with opened(client, where) as session:
        handles = [
            session.add(Request([1], tenant=f"tenant {shift}", processors=[(program, {"shift": shift})]))
            for shift in (1.0, 1e30, 2.0)
        ]
        logits = np.zeros((3, VOCAB), np.float32)
        step = session.step({handle: [] for handle in handles})
        result = step.apply(torch.from_numpy(logits) if "torch" in where else logits, check=False)
        assert result.failures.keys() == {handles[1]}
        assert isinstance(result.failures[handles[1]], ProcessorFailed)
        assert [set(row) for row in logits[[0, 2]].tolist()] == [{1.0}, {2.0}]


@pytest.mark.parametrize("chain", CHAINS, ids=len)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_step_on_logits_that_require_grad(client: Client, chain: Chain, mode: Any) -> None:
    """Also where the server processes the logits, or only edits or nothing are to be applied."""
    with opened(client, "engine, torch") as session:
        handle = session.add(Request([1, 5], processors=chain))
        logits = torch.full((1, VOCAB), 3.0, requires_grad=True)
        step = session.step({handle: []})
        with pytest.raises(InvalidArgument, match=r"require gradients.*torch\.no_grad\(\).*logits\.detach\(\)"):
            step.apply(logits)
        assert logits.unique().tolist() == [3.0]
        expected = torch.from_numpy(expected_row(chain, [1, 5], [], logits[0].detach().numpy().copy()))
        with mode():
            step.apply(logits)
        torch.testing.assert_close(logits[0].detach(), expected)


def test_client_apply_refuses_logits_that_require_grad(client: Client) -> None:
    logits = torch.ones(1, VOCAB, requires_grad=True)
    request = Request([1], processors=[("disallowed_tokens", {"token_ids": [1]})])
    with pytest.raises(InvalidArgument, match="require gradients"):
        client.apply(logits, [request])
    with torch.no_grad():
        processed = client.apply(logits, [request]).logits
    assert processed[0, :3].tolist() == [1.0, -INF, 1.0]
    assert not processed.requires_grad


@pytest.mark.parametrize("programs", ["all", "off"])
def test_a_program_for_larger_vocabularies(client: Client, programs: Any) -> None:
    with client.session(vocab_size=3, programs=programs) as session:
        with pytest.raises(InvalidArgument, match="for 3 logits"):
            session.add(Request([1], processors=[(build.top_k(4).program, {})]))
        assert len(session) == 0


def test_a_registered_program(client: Client) -> None:
    ref = client.register(TEMPERATURE.program, name="team/temperature")
    try:
        assert (ref.dialect, ref.digest, ref.not_lifted) == ("program", TEMPERATURE.program.digest, "")
        with opened(client, "engine, torch") as session:
            for processor in ("team/temperature", ref, ref.digest):
                handle = session.add(Request([1], processors=[(processor, {"temperature": 2.0})]))
                logits = torch.full((1, VOCAB), 4.0)
                result = session.step({handle: []}).apply(logits)
                assert logits.unique().tolist() == [2]
                assert result.rows_applied == {ref.display_name: 1}
                session.remove(handle)
    finally:
        client.delete(TEMPERATURE.program.digest)


def sealed(program: Program) -> str:
    return payload.seal_program(program.to_bytes(), "Sampler")


SEALED_TEMPERATURE = sealed(TEMPERATURE.program)
SEALED_PENALTY = sealed(build.repetition_penalty(2).program)


@pytest.fixture
def closed(server_without_flag: RunningServer) -> Iterator[Client]:
    with Client(server_without_flag.target) as client:
        yield client


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.slow
def test_a_server_that_accepts_no_code(closed: Client, dtype: torch.dtype) -> None:
    assert closed.register(SEALED_TEMPERATURE, name="team/temperature").display_name.startswith("Sampler ")
    temperature = ("team/temperature", {"temperature": 0.5})
    chain = [("disallowed_tokens", {"token_ids": [3]}), temperature, (SEALED_PENALTY, {"penalty": 4})]
    requests = [Request([1], processors=chain), Request([2], processors=chain[1:]), Request([3])]
    result = closed.apply(torch.ones(3, VOCAB, dtype=dtype), requests).logits
    expected = torch.ones(3, VOCAB, dtype=dtype)
    expected[:2] = 2
    expected[0, 3] = -INF
    expected[0, 1] = expected[1, 2] = 0.5
    assert torch.equal(result, expected)
    assert closed.delete("team/temperature") == ("team/temperature",)


def test_bad_parameters_fail_their_request(closed: Client) -> None:
    requests = [Request([1], processors=[(SEALED_TEMPERATURE, params)]) for params in ({"temperature": 1000}, {})]
    result = closed.apply(torch.ones(2, VOCAB), requests, check=False)
    assert [type(error) for error in result.failures.values()] == [InvalidArgument]
    assert "'temperature' is 1000; it must be a number in [0.01, 100]" in str(result.failures[0])


def too_large() -> str:
    data = bytes(MAX_BYTES)
    return sealed(
        Program("x", (Value("constant", element=Element.BOOL, shape=(Size(constant=len(data)),), data=data),))
    )


@pytest.mark.parametrize(
    ("serialized", "error"),
    [
        (json.dumps({"program": "00ff"}), InvalidArgument),
        (json.dumps({"program": build.min_p().program.to_bytes().hex() + "1200"}), InvalidArgument),
        (sealed(Program("x", (Value("logits"), Value("exp", (3,))))), InvalidArgument),
        (sealed(Program("x", (Value("logits"),) * 600)), LimitExceeded),
        (too_large(), InvalidArgument),
        (json.dumps({"program": "08", "callable": "80"}), PayloadError),
    ],
    ids=["no program", "not canonical", "against a rule", "too many values", "too large", "also code"],
)
def test_bad_programs(closed: Client, serialized: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        closed.register(serialized)
    with pytest.raises(RequestsFailed) as raised:
        closed.apply(torch.ones(1, VOCAB), [Request(processors=[(serialized, {})])])
    assert type(raised.value.failures[0]) is error


@pytest.mark.slow
def test_a_server_without_programs(start_server: Callable[..., RunningServer]) -> None:
    with Client(start_server("--no-programs").target) as client:
        for serialized in (SEALED_TEMPERATURE, Unchanged):
            with pytest.raises(PayloadError, match="--no-programs"):
                client.register(serialized)


# A `TensorProcessor` is shipped like any other class, and runs in the sandbox


class Presence(TensorProcessor):
    params = {"penalty": Float(default=1)}
    window = 1

    def process(self, logits, params, history):
        last = torch.arange(logits.shape[-1]) == history.ids[:, -1:]
        seen = history.token_counts(generated_only=True) * params.penalty[:, None]
        return (logits - seen).masked_fill(last, -INF)


@pytest.mark.slow
def test_requests_with_different_parameters_share_a_call(client: Client) -> None:
    logits = torch.tensor([[0.0, 1.0, 5.0], [0.0, 1.0, 5.0], [0.0, 1.0, 5.0]])
    requests = [Request([1], processors=[(MinP, params)]) for params in ({"min_p": 0.01}, {"min_p": 0.5}, {})]
    result = client.apply(logits, requests).logits
    assert result.tolist() == [[-INF, 1.0, 5.0], [-INF, -INF, 5.0], [-INF, -INF, 5.0]]


@pytest.mark.slow
def test_the_history_of_a_tensor_processor(client: Client) -> None:
    with client.session(vocab_size=4) as session:
        a = session.add(Request([0, 1], processors=[(Presence, {"penalty": 2.0})]))
        b = session.add(Request([2], processors=[(Presence, {})]))
        steps = []
        for new_ids in ({a: [], b: []}, {a: [2], b: [3]}, {a: [0], b: [3]}):
            logits = torch.zeros(2, 4)
            session.step(new_ids).apply(logits)
            steps.append(logits.tolist())
    assert steps == [
        [[0, -INF, 0, 0], [0, 0, -INF, 0]],
        [[0, 0, -INF, 0], [0, 0, 0, -INF]],
        [[-INF, 0, -2, 0], [0, 0, 0, -INF]],
    ]
