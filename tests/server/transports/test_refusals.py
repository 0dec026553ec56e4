"""Requests that sessions refuse: they are counted, and logged within bounds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from logitport_proto import common_pb2, processing_pb2
from logitport_server.transports.refusals import Refusals
from logitport_server.transports.session_stream import SessionStream
from logitport_session.resources import log_limit
from logitport_session.trust.principals import Principal
from tests.recorded_metrics import RecordedMetrics
from tests.session_streams import addition, answer

if TYPE_CHECKING:
    from collections.abc import Callable

ALICE, BOB = (Principal(name, frozenset()) for name in ("alice", "bob\nline"))


@pytest.fixture
def metrics() -> RecordedMetrics:
    return RecordedMetrics()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[float]:
    """The monotonic time; its only item."""
    caplog.set_level(logging.INFO)
    now = [1000.0]
    monkeypatch.setattr(log_limit.time, "monotonic", lambda: now[0])
    return now


def refused(message: str = "no such processor", slot: int = 0) -> common_pb2.Failure:
    error = common_pb2.Error(code=common_pb2.ERROR_CODE_NOT_FOUND, message=message)
    return common_pb2.Failure(slot=slot, error=error)


def count(metrics: RecordedMetrics, code: str) -> float:
    return sum(
        sample.value
        for family in metrics.read().refusals.collect()
        for sample in family.samples
        if sample.name == "logitport_requests_refused_total" and sample.labels["code"] == code
    )


def test_a_frame_is_one_line(metrics: RecordedMetrics, clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    Refusals(metrics.counts).record(ALICE, [], 8)
    Refusals(metrics.counts).record(ALICE, [refused(slot=5), refused(), refused()], 8)
    (line,) = caplog.messages
    assert "refused 3 of 8 requests of 'alice'" in line
    assert "of slot 5: ERROR_CODE_NOT_FOUND: 'no such processor'" in line
    assert count(metrics, "NOT_FOUND") == 3


def test_frames_do_not_fill_the_log(
    metrics: RecordedMetrics, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    refusals = Refusals(metrics.counts)
    for _ in range(1000):
        refusals.record(ALICE, [refused()], 1)
    refusals.record(BOB, [refused()], 1)
    assert len(caplog.messages) == 2, "one line for each principal"
    clock[0] += 1.0
    refusals.record(ALICE, [refused()], 1)
    assert "and 999 before that were not logged" in caplog.messages[-1]
    assert count(metrics, "NOT_FOUND") == 1002


def test_foreign_text_forges_no_line(
    metrics: RecordedMetrics, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    Refusals(metrics.counts).record(BOB, [refused("no\nERROR \x1b[2J" + "x" * 100_000)], 1)
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 600


def test_any_number_of_principals(
    metrics: RecordedMetrics, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_limit, "_MAX_KEYS", 8)
    refusals = Refusals(metrics.counts)
    for number in range(100):
        refusals.record(Principal(str(number), frozenset()), [refused()], 1)
    assert len(refusals._limit._recent) == 8


@pytest.mark.parametrize("in_background", [False, True])
def test_sessions_record_once_what_they_refuse(
    metrics: RecordedMetrics,
    clock: list[float],
    caplog: pytest.LogCaptureFixture,
    open_engine: Callable[..., Any],
    submitted: Any,
    in_background: bool,
) -> None:
    engine = open_engine(8, submit=submitted)
    stream = SessionStream(lambda _: engine.session, metrics.counts, None)
    opening = processing_pb2.OpenSession(vocab_size=8, datatype="FP32")
    answer(stream, processing_pb2.SessionRequest(seq=1, open=opening), "grpc")
    added = addition(["AddOutputs"], ["AddOutputs", "none"], in_background=in_background)
    answer(stream, processing_pb2.SessionRequest(seq=2, **added), "grpc")
    assert count(metrics, "NOT_FOUND") == (0 if in_background else 1)
    while submitted:
        submitted.run()
    collecting = processing_pb2.SessionRequest(seq=3, add=processing_pb2.AddRequests(in_background=True))
    for _ in range(2):
        answer(stream, collecting, "grpc")
    assert count(metrics, "NOT_FOUND") == 1
    assert [message for message in caplog.messages if "refused 1 of 2 requests of the caller" in message]


@pytest.mark.parametrize(
    "code",
    [
        common_pb2.ERROR_CODE_INVALID_ARGUMENT,
        common_pb2.ERROR_CODE_INVALID_PAYLOAD,
        common_pb2.ERROR_CODE_PROCESSOR_FAILED,
    ],
)
def test_the_log_has_no_values_of_parameters(
    code: common_pb2.ErrorCode, metrics: RecordedMetrics, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    error = common_pb2.Error(code=code, message="names: 'Jane Doe' is no list", processor="team/names")
    Refusals(metrics.counts).record(ALICE, [common_pb2.Failure(slot=5, error=error)], 1)
    assert "Jane" not in caplog.text
    assert "processor 'team/names'" in caplog.text
