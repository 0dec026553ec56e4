"""Calls that fail as a whole: the exception and the gRPC status. Requests that fail alone in a step.

Sessions and other calls are unaffected. tests/server/executors/test_bad_input.py has all kinds of refused requests,
and tests/server/session/test_step_failures.py all kinds of failures.
"""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import grpc
import pytest
import torch

from logitport import (
    Client,
    InvalidArgument,
    NotFound,
    ProcessorFailed,
    Request,
    ServerUnavailable,
    SessionClosed,
)
from logitport.errors import METADATA_KEY
from logitport_proto import common_pb2, processing_pb2, processing_pb2_grpc, registry_pb2, registry_pb2_grpc
from tests.toy_processors import AddOne, FailsInWay
from tests.waiting import SECONDS, wait_until

VOCAB = 32
GOOD = Request([3], processors=[("no_repeat_ngram", {"ngram_size": 1})])


LABELLED = json.dumps({**json.loads(AddOne.to_str()), "python": "3.9"})


@pytest.mark.parametrize(
    ("logits", "requests", "each"),
    [
        (torch.zeros(2, VOCAB), 3, 1),
        (torch.zeros(2, VOCAB), 2, 2),
        (torch.zeros(2, VOCAB), 2, 0),
        *((torch.zeros(2, VOCAB), 1, each) for each in ("2", 2.0, None)),
        (torch.zeros(0, VOCAB), 1, 1),
        (torch.zeros(1, VOCAB), 0, 1),
        (torch.zeros(0, 0), 0, 1),
        (torch.zeros(1, VOCAB, dtype=torch.float64), 1, 1),
        (torch.zeros(VOCAB), 1, 1),
        ([[0.0] * VOCAB], 1, 1),
    ],
)
def test_logits_and_requests_that_do_not_fit(client: Client, logits: Any, requests: int, each: Any) -> None:
    with pytest.raises(InvalidArgument):
        client.apply(logits, [GOOD] * requests, num_tokens_in_batch=each)


def test_an_empty_call_is_no_error(client: Client) -> None:
    assert client.apply(torch.zeros(0, VOCAB), []).logits.shape == (0, VOCAB)
    logits = torch.randn(2, VOCAB)
    assert torch.equal(client.apply(logits, [Request([1]), Request()]).logits, logits)
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        session.step({}).apply(torch.zeros(0, VOCAB))
        before = logits.clone()
        session.step({session.add(Request()): [], session.add(Request([1])): [2]}).apply(logits)
        assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "opening",
    [
        *({"vocab_size": value} for value in (0, 2**31, "many")),
        *({"dtype": value} for value in (torch.float64, None)),
        *({name: -1} for name in ("max_requests", "max_draft_tokens")),
        *({"eos_token_ids": [value]} for value in (VOCAB, "x")),
        {"model_name": 5},
    ],
)
def test_invalid_session_options_are_refused(client: Client, opening: Any) -> None:
    with pytest.raises(InvalidArgument):
        client.session(**{"vocab_size": VOCAB, **opening})


@pytest.mark.parametrize("name", [5, "\ud800"])
def test_names_that_are_not_valid_text(client: Client, name: Any) -> None:
    for call in (client.processor, client.delete, lambda wrong: client.register(AddOne, name=wrong)):
        with pytest.raises(InvalidArgument):
            call(name)


@pytest.mark.parametrize("transport", ["grpc", "local"])
def test_sessions_end_with_their_client(server: Any, transport: Any) -> None:
    before = threading.active_count()
    with Client(server.target) as client:
        session = client.session(vocab_size=VOCAB, transport=transport)
        handle = session.add(GOOD)
    with pytest.raises(SessionClosed):
        session.step({handle: []})
    wait_until(lambda: threading.active_count() <= before, threading.enumerate)


def test_after_close(server: Any) -> None:
    client = Client(server.target)
    client.close()
    client.close()
    calls = (client.processors, lambda: client.apply(torch.zeros(0, 1), []), lambda: client.session(vocab_size=VOCAB))
    for call in calls:
        with pytest.raises(ServerUnavailable, match="closed"):
            call()


# The raw gRPC interface, as used from any language


ZEROS = {"datatype": "FP32", "shape": [1, VOCAB], "raw": bytes(4 * VOCAB)}


@pytest.mark.parametrize(
    ("method", "message", "status", "code"),
    [
        ("Register", {"payload": "x"}, "INVALID_ARGUMENT", "INVALID_PAYLOAD"),
        ("Register", {"payload": AddOne.to_str(), "name": "x"}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        ("Register", {"payload": LABELLED}, "FAILED_PRECONDITION", "PYTHON_MISMATCH"),
        ("Get", {"processor": "nobody"}, "NOT_FOUND", "NOT_FOUND"),
        ("Get", {}, "NOT_FOUND", "NOT_FOUND"),
        ("Delete", {"processor": "nobody"}, "NOT_FOUND", "NOT_FOUND"),
        ("Delete", {"processor": "thinking_budget"}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        ("Apply", {}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        ("Apply", {"logits": ZEROS}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        ("Apply", {"logits": {**ZEROS, "raw": b""}, "requests": [{}]}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        ("Apply", {"logits": {**ZEROS, "datatype": "FP8"}, "requests": [{}]}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        (
            "Apply",
            {"logits": {"datatype": "FP32", "shape": [5000, 1], "raw": bytes(20000)}, "requests": [{}] * 5000},
            "RESOURCE_EXHAUSTED",
            "LIMIT_EXCEEDED",
        ),
    ],
)
def test_status_code_and_error_details(
    server: Any, method: str, message: dict[str, Any], status: str, code: str
) -> None:
    with grpc.insecure_channel(server.target) as channel:
        stubs = (registry_pb2_grpc.ProcessorRegistryStub(channel), processing_pb2_grpc.LogitProcessingStub(channel))
        kind = getattr(registry_pb2, f"{method}Request", None) or getattr(processing_pb2, f"{method}Request")
        call = next(getattr(stub, method) for stub in stubs if hasattr(stub, method))
        with pytest.raises(grpc.RpcError) as raised:
            call(kind(**message), timeout=SECONDS)
    assert raised.value.code().name == status
    metadata = dict(raised.value.trailing_metadata())
    error = common_pb2.Error.FromString(metadata[METADATA_KEY])
    assert common_pb2.ErrorCode.Name(error.code) == f"ERROR_CODE_{code}"
    assert error.message == raised.value.details()


@pytest.mark.parametrize("length", [5_000, 30_000])
def test_long_error_messages_arrive(client: Client, length: int) -> None:
    """gRPC limits the size of the trailers that carry an error."""
    with pytest.raises(InvalidArgument, match="'xxx"):
        client.register(AddOne, name="x" * length)
    with pytest.raises(NotFound, match="'ééé"):
        client.processor("é" * length)


def test_bytes_that_are_not_a_message(server: Any, client: Client) -> None:
    with grpc.insecure_channel(server.target) as channel:
        for method in ("LogitProcessing/Apply", "ProcessorRegistry/Register"):
            call = channel.unary_unary(f"/logitport.v1.{method}")
            with pytest.raises(grpc.RpcError, match=r"3 bytes are not a valid (Apply|Register)Request") as refused:
                call(b"\xff\xff\xff", timeout=SECONDS)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        stream = channel.stream_stream("/logitport.v1.LogitProcessing/Session")
        with pytest.raises(grpc.RpcError):
            list(stream(iter([b"\xff\xff\xff"]), timeout=SECONDS))
    assert client.processors()


def test_a_loopback_connection_ignores_proxy_settings(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Client(server.target, timeout=SECONDS) as client:
        assert client.processors()


INF = float("inf")
ONES = Request([3], processors=[("no_repeat_ngram", {"ngram_size": 1}), (AddOne, {})])


def good_row(row: torch.Tensor) -> bool:
    return row.tolist() == [-INF if token_id == 3 else 1.0 for token_id in range(VOCAB)]


FAILS = {
    "raises": "raised KeyError: 'banned'",
    "exits": "raised SystemExit: 1",
    "shape": r"returned a tensor of shape \[1, 31\]; .*\[1, 32\]",
}


@pytest.mark.parametrize(
    ("way", "on_error", "by"), [("raises", "abort", "grpc"), ("shape", "skip", "local"), ("exits", "skip", "apply")]
)
def test_a_processor_that_fails(client: Client, way: str, on_error: Any, by: Any) -> None:
    name = client.register(FailsInWay).display_name
    bad = Request([1], processors=[(AddOne, {}), (FailsInWay, {"way": way})], on_error=on_error)
    if by == "apply":
        result: Any = client.apply(torch.zeros(3, VOCAB), [ONES, bad, ONES], check=False)
        check_failure(result, result.logits, 1, way, on_error, name)
        return
    with client.session(vocab_size=VOCAB, dtype=torch.float32, transport=by) as session:
        handles = [session.add(request) for request in (ONES, bad, ONES)]
        for _ in range(2):
            logits = torch.zeros(3, VOCAB)
            result = session.step({handle: [] for handle in handles}).apply(logits, check=False)
            check_failure(result, logits, handles[1], way, on_error, name)


def check_failure(result: Any, logits: torch.Tensor, culprit: Any, way: str, on_error: str, name: str) -> None:
    """Check that only the second of three requests failed, and how."""
    failed = {"abort": result.failures, "skip": result.skipped}
    assert list(failed[on_error]) == [culprit]
    assert sum(map(len, failed.values())) == 1
    error = failed[on_error][culprit]
    assert type(error) is ProcessorFailed
    assert re.match(f"processor {re.escape(name)} {FAILS[way]}", error.message)
    assert error.processor == name
    if way == "raises":
        assert error.remote_traceback.rstrip().endswith("KeyError: 'banned'")
        assert "Remote traceback" in str(error)
    assert good_row(logits[0])
    assert good_row(logits[2])
    if on_error == "skip":
        assert not logits[1].any()
