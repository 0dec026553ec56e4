"""Bad input fails its own request, in either executor: the exception, its message, and the results of the others."""

from __future__ import annotations

import json
import pickle
import re
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import InvalidArgument, LogitportError, PayloadError, ProcessorFailed, Request, payload
from logitport.core import tensors
from logitport.errors import from_proto
from logitport_proto import processing_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.config import ServerConfig
from logitport_server.registry.policy import PayloadPolicy
from logitport_session.engine_session import session_admissions, session_steps
from logitport_session.engine_session.apply import apply
from logitport_session.engine_session.engine_session import EngineSession
from tests.toy_processors import AddOne, FailsInWay, RaisesInInit, RequiresFloat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from logitport_server.executors.base import Executor

    Open = Callable[[processing_pb2.OpenSession], EngineSession]

VOCAB = 32
INF = float("inf")
MADE_ELSEWHERE = Path(__file__).parents[2] / "client" / "payload" / "data"
ANOTHER_PYTHON = "3.12" if sys.version_info[:2] == (3, 13) else "3.13"


def code_of_another_python() -> str:
    serialized: str = json.loads((MADE_ELSEWHERE / f"python{ANOTHER_PYTHON}.json").read_text())["Comprehension"][0]
    return serialized


class AddTwo(AddOne):
    """Never loaded: only its label is wrong, and the bytes of a class that runs are not looked at again."""


LABELLED = json.dumps({**json.loads(AddTwo.to_str()), "python": "3.9"})

# The processor, its parameters, and the error.
REFUSED: dict[str, tuple[Any, dict[str, Any], type[LogitportError], str]] = {
    "no pickle": ('{"callable": "00ff"}', {}, PayloadError, "not a pickle"),
    "not a class": (json.dumps({"callable": pickle.dumps(7).hex()}), {}, PayloadError, "a int is no processor"),
    "no such module": (json.dumps({"callable": b"cnowhere\nNobody\n.".hex()}), {}, PayloadError, r"nowhere\.Nobody"),
    "raising __init__": (RaisesInInit, {}, PayloadError, "RaisesInInit raised .*no table for me"),
    "another Python, labelled": (LABELLED, {}, PayloadError, r"Python 3\.9"),
    "another Python, no label": (code_of_another_python(), {}, PayloadError, "ship it from Python"),
    "parameters": ("disallowed_tokens", {"token_ids": "x"}, InvalidArgument, "token_ids"),
    "parameters that are missing": ("disallowed_tokens", {}, InvalidArgument, "token_ids"),
    "parameters that a class refuses": (RequiresFloat, {"strength": 1}, InvalidArgument, "strength must be a number"),
    "parameters that a class refuses with a ValueError": (
        RequiresFloat,
        {"strength": -1.0},
        InvalidArgument,
        "RequiresFloat.*: strength must not be negative",
    ),
    "validate_params that raises": (RequiresFloat, {}, ProcessorFailed, "KeyError: 'strength'"),
    "a parameter outside the vocabulary": ("disallowed_tokens", {"token_ids": [VOCAB]}, InvalidArgument, str(VOCAB)),
}


def check(error: LogitportError, expected: type[LogitportError], message: str) -> None:
    assert type(error) is expected
    with pytest.raises(expected, match=message):
        raise error


GOOD = Request([3], processors=[("no_repeat_ngram", {"ngram_size": 1}), (AddOne, {})])


def good_row(row: torch.Tensor) -> bool:
    return row.tolist() == [-INF if token_id == 3 else 1.0 for token_id in range(VOCAB)]


@pytest.fixture
def open_session(executor: Executor) -> Open:
    """Opens sessions of a server that accepts shipped processors."""
    registry = LocalRegistry(PayloadPolicy(allow_shipped=True, max_bytes=1 << 20), max_registered=8, max_owned=8)
    return lambda opening: EngineSession(opening, registry, executor, torch.device("cpu"), ServerConfig())


def apply_requests(open_session: Open, *requests: Request) -> tuple[torch.Tensor, processing_pb2.ApplyResponse]:
    """The logits and the reply of one call, with a row of zeros for each request."""
    message = processing_pb2.ApplyRequest(requests=[request.to_proto() for request in requests])
    tensors.write(message.logits, torch.zeros(len(requests), VOCAB))
    response, _ = apply(message, open_session)
    return tensors.to_torch(response.logits), response


def add(session: EngineSession, *requests: Request) -> processing_pb2.RequestsAdded:
    """The reply to the admission of requests, in slots 0, 1, ..."""
    reply = processing_pb2.RequestsAdded()
    additions = [
        processing_pb2.SlottedRequest(slot=slot, request=request.to_proto()) for slot, request in enumerate(requests)
    ]
    session_admissions.add(session, processing_pb2.AddRequests(requests=additions), reply)
    return reply


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_is_refused(open_session: Open, name: str) -> None:
    """The registry and the session refuse others, for any executor."""
    processor, params, expected, message = REFUSED[name]
    refused = Request(processors=[(processor, params)], on_error="skip")
    logits, response = apply_requests(open_session, GOOD, refused, GOOD)
    (failure,) = response.failures
    assert (failure.slot, failure.skipped) == (1, True)
    check(from_proto(failure.error), expected, message)
    assert good_row(logits[0])
    assert good_row(logits[2])
    assert not logits[1].any()


def int32(values: Iterable[int]) -> bytes:
    return np.fromiter(values, "<i4").tobytes()


def run_step(
    session: EngineSession, requests: list[Request]
) -> tuple[torch.Tensor, list[processing_pb2.RequestFailure]]:
    """The logits of a step without new ids, and its failures. The requests hold slots 0, 1, ..., and read logits."""
    frame = processing_pb2.Step(
        slots=int32(range(len(requests))),
        generations=bytes(4 * len(requests)),
        base_lengths=int32(len(request.prompt_token_ids) for request in requests),
        history_crcs=b"".join(
            zlib.crc32(int32(request.prompt_token_ids)).to_bytes(4, "little") for request in requests
        ),
    )
    edits = processing_pb2.StepEdits()
    data = processing_pb2.SessionRequest(seq=1, step=frame).SerializeToString()
    session_steps.step(session, frame, data, edits)
    assert not edits.failures
    assert edits.logits_rows == int32(range(len(requests)))
    message = processing_pb2.StepLogits()
    tensors.write(message.logits, torch.zeros(len(requests), VOCAB))
    edited = processing_pb2.StepLogitsEdited()
    session_steps.edit_logits(session, message, edited)
    return tensors.to_torch(edited.logits), list(edited.failures)


# Processors that fail in a step


FAILS = {
    "raises": "raised KeyError: 'banned'",
    "exits": "raised SystemExit: 1",
    "None": "returned NoneType; return the logits",
    "shape": r"returned a tensor of shape \[1, 31\]; .*\[1, 32\]",
    "int": r"returned a tensor of dtype torch\.int32; return the logits, a floating-point tensor",
    "list": "returned list; return the logits",
}


@pytest.mark.parametrize("way", FAILS)
@pytest.mark.parametrize("on_error", ["abort", "skip"])
@pytest.mark.parametrize("by", ["apply", "step"])
def test_a_processor_that_fails(open_session: Open, way: str, on_error: Any, by: str) -> None:
    display_name = f"FailsInWay (sha256:{payload.parse(FailsInWay.to_str()).digest[:12]})"
    bad = Request([1], processors=[(AddOne, {}), (FailsInWay, {"way": way})], on_error=on_error)
    requests = [GOOD, bad, GOOD]
    if by == "apply":
        logits, response = apply_requests(open_session, *requests)
        failures = list(response.failures)
    else:
        session = open_session(processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32"))
        assert not add(session, *requests).failures
        logits, failures = run_step(session, requests)
    (failure,) = failures
    assert (failure.slot, failure.skipped) == (1, on_error == "skip")
    error = from_proto(failure.error)
    check(error, ProcessorFailed, f"processor {re.escape(display_name)} {FAILS[way]}")
    assert error.processor == display_name
    if way == "raises":
        assert "in look_up" in error.remote_traceback
        assert error.remote_traceback.rstrip().endswith("KeyError: 'banned'")
        assert "Remote traceback" in str(error)
    assert good_row(logits[0])
    assert good_row(logits[2])
    if on_error == "skip":
        assert not logits[1].any()
