"""Calls that fail as a whole: the exception and the gRPC status. Sessions and other calls are unaffected."""

from __future__ import annotations

import json
import threading
from typing import Any

import grpc
import pytest
import torch

from logitport import Client, InvalidArgument, LogitportError, NotFound, Request, ServerUnavailable, SessionClosed
from logitport.errors import METADATA_KEY
from logitport_proto import common_pb2, processing_pb2, processing_pb2_grpc, registry_pb2, registry_pb2_grpc
from tests.toy_processors import AddOne
from tests.waiting import SECONDS, wait_until

VOCAB = 32
GOOD = Request([3], processors=[("no_repeat_ngram", {"ngram_size": 1})])


LABELLED = json.dumps({**json.loads(AddOne.to_str()), "python": "3.9"})


@pytest.mark.parametrize(
    ("logits", "requests", "each", "expected"),
    [
        (torch.zeros(2, VOCAB), 3, 1, InvalidArgument),
        (torch.zeros(2, VOCAB), 2, 2, InvalidArgument),
        (torch.zeros(2, VOCAB), 2, 0, InvalidArgument),
        (torch.zeros(2, VOCAB), 1, "2", InvalidArgument),
        (torch.zeros(2, VOCAB), 1, 2.0, InvalidArgument),
        (torch.zeros(2, VOCAB), 1, None, InvalidArgument),
        (torch.zeros(0, VOCAB), 1, 1, InvalidArgument),
        (torch.zeros(1, VOCAB), 0, 1, InvalidArgument),
        (torch.zeros(0, 0), 0, 1, InvalidArgument),
        (torch.zeros(1, VOCAB, dtype=torch.float64), 1, 1, InvalidArgument),
        (torch.zeros(1, VOCAB, dtype=torch.int32), 1, 1, InvalidArgument),
        (torch.zeros(VOCAB), 1, 1, InvalidArgument),
        ([[0.0] * VOCAB], 1, 1, InvalidArgument),
    ],
)
def test_logits_and_requests_that_do_not_fit(
    client: Client, logits: Any, requests: int, each: Any, expected: type[LogitportError]
) -> None:
    with pytest.raises(expected):
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
    ("opening", "expected"),
    [
        ({"vocab_size": 0}, InvalidArgument),
        ({"vocab_size": 2**31}, InvalidArgument),
        ({"vocab_size": "many"}, InvalidArgument),
        ({"dtype": torch.float64}, InvalidArgument),
        ({"dtype": None}, InvalidArgument),
        ({"max_requests": -1}, InvalidArgument),
        ({"max_draft_tokens": -1}, InvalidArgument),
        ({"eos_token_ids": [VOCAB]}, InvalidArgument),
        ({"eos_token_ids": ["x"]}, InvalidArgument),
        ({"model_name": 5}, InvalidArgument),
    ],
)
def test_invalid_session_options_are_refused(client: Client, opening: Any, expected: type[LogitportError]) -> None:
    with pytest.raises(expected):
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


def raw(processor: str) -> dict[str, Any]:
    return {"processors": [{"processor": {"builtin": processor}}]}


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


def test_refused_frames_leave_the_session_open(server: Any) -> None:
    opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
    frames = [
        {"remove": {}},
        {"open": {"vocab_size": 0, "datatype": "FP32"}},
        {"open": opening},
        {"open": opening},
        {},
        {"step": {"slots": b"123"}},
        {"logits": {"logits": ZEROS}},
        {"add": {"requests": [{"slot": 0, "request": raw("disallowed_tokens")}]}},
        {
            "add": {
                "requests": [{"slot": 0, "request": raw("no_repeat_ngram")}, {"slot": 1}, {"slot": 1, "generation": 1}]
            }
        },
        {"step": {}},
    ]
    with grpc.insecure_channel(server.target) as channel:
        stub = processing_pb2_grpc.LogitProcessingStub(channel)
        numbered = (processing_pb2.SessionRequest(seq=seq, **frame) for seq, frame in enumerate(frames, 1))
        replies = list(stub.Session(numbered, timeout=SECONDS))
    services_called = [
        common_pb2.ErrorCode.Name(reply.error.code).removeprefix("ERROR_CODE_")
        if reply.WhichOneof("frame") == "error"
        else reply.WhichOneof("frame")
        for reply in replies
    ]
    assert services_called == [
        *("SESSION_CLOSED", "INVALID_ARGUMENT", "opened", "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        *("INVALID_ARGUMENT", "INVALID_ARGUMENT", "added", "added", "edits"),
    ]
    codes = [[common_pb2.ErrorCode.Name(failure.error.code) for failure in replies[at].added.failures] for at in (7, 8)]
    assert codes == [["ERROR_CODE_INVALID_ARGUMENT"], ["ERROR_CODE_INVALID_ARGUMENT", "ERROR_CODE_INVALID_ARGUMENT"]]


def test_a_loopback_connection_ignores_proxy_settings(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Client(server.target, timeout=SECONDS) as client:
        assert client.processors()
