"""Programs on a server that accepts no code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, LimitExceeded, PayloadError, Request, RequestsFailed, payload
from logitport_programs.program import MAX_BYTES, Program, Value
from logitport_programs.types import Element, Size
from tests.programs.runtime import build
from tests.toy_processors import Unchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB = 8
INF = float("inf")


def sealed(program: Program) -> str:
    return payload.seal_program(program.to_bytes(), "Sampler")


TEMPERATURE = sealed(build.temperature().program)
PENALTY = sealed(build.repetition_penalty(2).program)


@pytest.fixture
def closed(server_without_flag: RunningServer) -> Iterator[Client]:
    with Client(server_without_flag.target) as client:
        yield client


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_apply(closed: Client, dtype: torch.dtype) -> None:
    chain = [("disallowed_tokens", {"token_ids": [3]}), (TEMPERATURE, {"temperature": 0.5}), (PENALTY, {"penalty": 4})]
    requests = [Request([1], processors=chain), Request([2], processors=chain[1:]), Request([3])]
    result = closed.apply(torch.ones(3, VOCAB, dtype=dtype), requests).logits
    expected = torch.ones(3, VOCAB, dtype=dtype)
    expected[:2] = 2
    expected[0, 3] = -INF
    expected[0, 1] = expected[1, 2] = 0.5
    assert torch.equal(result, expected)


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_a_session(closed: Client, transport: Any) -> None:
    digest = closed.register(PENALTY, name="team/penalty").digest
    with closed.session(vocab_size=VOCAB, transport=transport) as session:
        by_name = session.add(Request([1], processors=[("team/penalty", {"penalty": 2.0})]))
        inline = session.add(Request([2], processors=[(PENALTY, {}), (TEMPERATURE, {"temperature": 2.0})]))
        steps = []
        for new in ({by_name: [], inline: []}, {by_name: [3], inline: [4]}, {by_name: [5], inline: [6]}):
            logits = torch.ones(2, VOCAB)
            result = session.step(new).apply(logits)
            assert result.rows_applied[payload.display_name_of("Sampler", digest)] == 2
            steps.append(logits.clone())
    seen = [np.flatnonzero(step[0] == 0.5).tolist() for step in steps]
    assert seen == [[1], [1, 3], [3, 5]], "the last two ids"
    assert all(step[1].eq(0.5).all() for step in steps)
    closed.delete(digest)


def test_descriptions(closed: Client) -> None:
    ref = closed.register(TEMPERATURE, name="team/temperature")
    (listed,) = [one for one in closed.processors() if one.digest == ref.digest]
    assert (listed.dialect, listed.class_name, listed.names) == ("program", "Sampler", ("team/temperature",))
    assert closed.delete(ref.digest) == ("team/temperature",)


def test_bad_parameters_fail_their_request(closed: Client) -> None:
    requests = [Request([1], processors=[(TEMPERATURE, params)]) for params in ({"temperature": 1000}, {})]
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


def test_logits_that_are_too_narrow(closed: Client) -> None:
    with pytest.raises(RequestsFailed, match="3 logits") as raised:
        closed.apply(torch.ones(1, 3), [Request(processors=[(sealed(build.top_k().program), {})])])
    assert isinstance(raised.value.failures[0], InvalidArgument)


@pytest.mark.slow
def test_no_programs(start_server: Callable[..., RunningServer]) -> None:
    with Client(start_server("--no-programs").target) as client:
        for serialized in (TEMPERATURE, Unchanged):
            with pytest.raises(PayloadError, match="--no-programs"):
                client.register(serialized)
