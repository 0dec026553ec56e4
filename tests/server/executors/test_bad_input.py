"""Processors and parameters that are refused, in either executor: the exception, and the results of the others."""

from __future__ import annotations

import json
import pickle
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import InvalidArgument, LogitportError, PayloadError, ProcessorFailed, Request
from logitport.core import tensors
from logitport.errors import from_proto
from logitport_proto import processing_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.config import ServerConfig
from logitport_server.registry.policy import PayloadPolicy
from logitport_session.engine_session.apply import apply
from logitport_session.engine_session.engine_session import EngineSession
from tests.toy_processors import AddOne, RaisesInInit, RequiresFloat

if TYPE_CHECKING:
    from logitport_server.executors.base import Executor

VOCAB = 32
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


CHAIN = [("no_repeat_ngram", {"ngram_size": 1}), (AddOne, {})]
GOOD_ROW = [-float("inf") if token_id == 3 else 1.0 for token_id in range(VOCAB)]


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_is_refused(executor: Executor, name: str) -> None:
    """The registry and the session refuse others, for any executor."""
    processor, params, expected, named = REFUSED[name]
    registry = LocalRegistry(PayloadPolicy(allow_shipped=True, max_bytes=1 << 20), max_registered=8, max_owned=8)
    refused = Request(processors=[(processor, params)], on_error="skip")
    requests = [Request([3], processors=CHAIN), refused, Request([3], processors=CHAIN[::-1])]
    message = processing_pb2.ApplyRequest(requests=[request.to_proto() for request in requests])
    tensors.write(message.logits, torch.zeros(3, VOCAB))
    response, _ = apply(
        message, lambda opening: EngineSession(opening, registry, executor, torch.device("cpu"), ServerConfig())
    )
    (failure,) = response.failures
    assert (failure.slot, failure.skipped) == (1, True)
    error = from_proto(failure.error)
    assert type(error) is expected
    assert re.search(named, str(error))
    assert tensors.to_torch(response.logits).tolist() == [GOOD_ROW, [0.0] * VOCAB, GOOD_ROW]
