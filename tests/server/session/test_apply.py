"""Apply: one step without a session."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import InvalidArgument, LimitExceeded, LogitportError, NotFound, Request
from logitport.core import tensors
from logitport_proto import common_pb2, processing_pb2
from logitport_session.engine_session.apply import apply

if TYPE_CHECKING:
    from collections.abc import Callable

    Apply = Callable[[processing_pb2.ApplyRequest], processing_pb2.ApplyResponse]

VOCAB = 10
INF = float("inf")
DENY, ADD, COUNT = [("DenyHistory", {})], [("AddOutputs", {})], [("CountCalls", {})]


@pytest.fixture(scope="session")
def apply_with_toys(open_engine: Any) -> Apply:
    """Calls Apply with the toy processors and a limit of four requests."""
    return lambda message: apply(
        message, lambda opening: open_engine(opening.vocab_size, datatype=opening.datatype).session
    )[0]


def message_of(logits: torch.Tensor, requests: list[Request], each: int = 0) -> processing_pb2.ApplyRequest:
    message = processing_pb2.ApplyRequest(
        requests=[request.to_proto() for request in requests], num_tokens_in_batch=each
    )
    tensors.write(message.logits, logits)
    return message


def test_rows_and_parameters_are_repeated(apply_with_toys: Apply) -> None:
    requests = [Request([1], [2], processors=COUNT), Request([1], processors=[*ADD, *DENY])]
    response = apply_with_toys(message_of(torch.zeros(4, VOCAB), requests, 2))
    zeros = [0.0, -INF, *[0.0] * 8]
    assert tensors.to_torch(response.logits).tolist() == [[1.0] * 10, [2.0] * 10, zeros, zeros]
    applied = {one.processor: one.rows for one in response.applied}
    assert applied == {"CountCalls": 2, "AddOutputs": 2, "DenyHistory": 2}


def test_one_request_is_refused_and_the_others_are_served(apply_with_toys: Apply, open_engine: Any) -> None:
    requests = [Request(processors=[("Unknown", {})]), Request([3], processors=DENY), Request([-1], on_error="skip")]
    response = apply_with_toys(message_of(torch.zeros(3, VOCAB), requests))
    assert open_engine.failures(response) == {0: (NotFound, False), 2: (InvalidArgument, True)}
    logits = tensors.to_torch(response.logits)
    assert logits[1].tolist() == [0, 0, 0, -INF, *[0.0] * 6]
    assert not logits[2].any()


def test_an_empty_message(apply_with_toys: Apply) -> None:
    response = apply_with_toys(message_of(torch.zeros(0, VOCAB), []))
    assert list(response.logits.shape) == [0, VOCAB]
    assert not response.failures


def test_too_much_work_is_refused_before_any_request_is_admitted(open_engine: Any) -> None:
    sessions = []

    def open_session(opening: processing_pb2.OpenSession) -> Any:
        sessions.append(open_engine(opening.vocab_size, datatype=opening.datatype, max_step_work=7).session)
        return sessions[-1]

    requests = [Request([1], processors=DENY * 2), Request([1], processors=ADD * 2)]
    with pytest.raises(LimitExceeded, match=r"4 rows is 8 .* --max-step-work"):
        apply(message_of(torch.zeros(4, VOCAB), requests, 2), open_session)
    assert len(sessions[0]) == 0
    requests.pop()
    response, _ = apply(message_of(torch.zeros(2, VOCAB), requests, 2), open_session)
    assert not response.failures


@pytest.mark.parametrize(
    ("shape", "requests", "each", "error", "message"),
    [
        ([2, VOCAB], 3, 1, InvalidArgument, "2 rows of logits for 3 requests of 1 each; send 3 rows"),
        ([2, VOCAB], 2, 2, InvalidArgument, "send 4 rows"),
        ([2, VOCAB], 2, -1, InvalidArgument, "num_tokens_in_batch is -1"),
        ([2, VOCAB, 1], 2, 1, InvalidArgument, r"shape \[2, 10, 1\]; send \[rows, vocab_size\]"),
        ([2], 2, 1, InvalidArgument, "send"),
        ([0, 0], 0, 1, InvalidArgument, "vocab_size is 0"),
        ([0, 2**40], 0, 1, InvalidArgument, "the width is 2147483647 at most"),
        ([258, VOCAB], 1, 258, LimitExceeded, "258; the server accepts 257 rows .* send fewer"),
        ([5, VOCAB], 5, 1, LimitExceeded, "5 requests .* accepts 4: send fewer, or raise --max-requests-per-session"),
    ],
)
def test_invalid_messages_are_refused(
    apply_with_toys: Apply, shape: list[int], requests: int, each: int, error: type[LogitportError], message: str
) -> None:
    data = bytes(4 * math.prod(shape))
    request = processing_pb2.ApplyRequest(
        logits=common_pb2.Tensor(datatype="FP32", shape=shape, raw=data),
        requests=[common_pb2.Request()] * requests,
        num_tokens_in_batch=each,
    )
    with pytest.raises(error, match=message):
        apply_with_toys(request)


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (common_pb2.Tensor(datatype="FP64", shape=[1, 2], raw=bytes(16)), InvalidArgument),
        (common_pb2.Tensor(datatype="FP32", shape=[1, 2], raw=bytes(7)), InvalidArgument),
        (common_pb2.Tensor(datatype="FP32", shape=[1, 2]), InvalidArgument),
        (common_pb2.Tensor(datatype="FP32", shape=[1, 2], region=common_pb2.Region(region_id=1)), InvalidArgument),
    ],
)
def test_invalid_logits_are_refused(
    apply_with_toys: Apply, tensor: common_pb2.Tensor, error: type[LogitportError]
) -> None:
    with pytest.raises(error):
        apply_with_toys(processing_pb2.ApplyRequest(logits=tensor, requests=[common_pb2.Request()]))
