"""Steps that the compiled core computes, from the bytes of a frame to those of its reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.protobuf.message import DecodeError

from logitport.core import compiled
from logitport.errors import LimitExceeded, LogitportError, from_proto
from logitport_session.engine_session import session_steps
from logitport_session.telemetry import tracing
from tests.server.conftest import int32
from tests.server.transports.compiled_streams import Frame, Reply, computed, in_python, metrics, open_stream, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.transports.session_stream import SessionStream
    from tests.recorded_metrics import RecordedMetrics

__all__ = ["metrics", "open_stream"]  # fixtures

pytestmark = pytest.mark.skipif(compiled.core is None, reason=f"the compiled core does not run: {compiled.REASON}")


def test_the_reply_is_that_of_python(open_stream: Callable[..., SessionStream]) -> None:
    stream, reference = open_stream(), open_stream()
    for seq, base in ((3, 1), (4, 2), (5, 1)):
        data = computed(stream, step(seq, base=base))
        assert data is not None
        expected = in_python(reference, step(seq, base=base))
        assert Reply.FromString(data) == expected
        assert data == expected.SerializeToString(deterministic=True)


@pytest.mark.parametrize("zeros", [0, 1, 3, 4, 8])
def test_long_numbers_are_those_of_protobuf(open_stream: Callable[..., SessionStream], zeros: int) -> None:
    """Numbers with zeros at their end, of which it accepts as many as fit."""

    def longer(number: int) -> bytes:
        return bytes([number & 127 | 128, *[128] * zeros, 0])

    columns = Frame.FromString(step(3)).step.SerializeToString()
    assert len(columns) < 128
    for data in (
        b"\x08\x03" + longer(5 << 3 | 2) + bytes([len(columns)]) + columns,  # the tag
        b"\x08\x03\x2a" + longer(len(columns)) + columns,  # the length
        b"\x08" + longer(3) + b"\x2a" + bytes([len(columns)]) + columns,  # another number
    ):
        try:
            Frame.FromString(data)
            accepts = True
        except DecodeError:
            accepts = False
        assert (computed(open_stream(), data) is not None) == accepts


def test_no_frame_follows_that_with_the_last_number(open_stream: Callable[..., SessionStream]) -> None:
    stream, last = open_stream(), (1 << 64) - 1
    stream._frames._last_seq = last - 1
    first = stream.reply(step(last), "local")
    assert Reply.FromString(first).HasField("edits")
    assert stream.reply(step(last), "local") == first
    for seq in (0, 1):
        assert "increase by one" in Reply.FromString(stream.reply(step(seq, base=2), "local")).error.message


def test_a_session_with_other_requests_is_left_to_python(open_stream: Callable[..., SessionStream]) -> None:
    stream = open_stream("DisallowedTokens", "DenyHistory")
    assert computed(stream, step(3)) is None
    assert Reply.FromString(stream.reply(step(3), "local")).edits.edits.ids == int32(7, 8, 1, 5)


def test_metrics_of_a_step(open_stream: Callable[..., SessionStream], metrics: RecordedMetrics) -> None:
    value = metrics.value
    stream = open_stream()
    assert computed(stream, step(3), "grpc") is not None
    stream.record()
    assert value("logitport_steps_total", transport="grpc") == 1
    stream.close()  # the counts of closed sessions stay
    assert value("logitport_steps_total", transport="grpc") == 1
    assert value("logitport_step_seconds_count", transport="grpc", part="edits") == 1
    assert value("logitport_step_queue_seconds_count", transport="grpc") == 1
    assert value("logitport_rows_applied_total", processor="DisallowedTokens") == 1
    assert value("logitport_processor_step_seconds_count", processor="DisallowedTokens") == 1
    assert 0 < (value("logitport_processor_step_seconds_sum", processor="DisallowedTokens") or 0) < 1


def test_a_sampled_step_is_left_to_python(
    open_stream: Callable[..., SessionStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = open_stream()
    drawn = iter([1, 5])
    monkeypatch.setattr(tracing, "unsampled_steps", lambda: next(drawn))
    stream._frames._spans._unsampled = None
    assert computed(stream, step(3)) is not None
    assert computed(stream, step(4, base=2)) is None
    assert computed(stream, step(4, base=2)) is None
    assert Reply.FromString(stream.reply(step(4, base=2), "local")).HasField("edits")
    assert stream._frames._spans.ended
    assert computed(stream, step(5, base=3)) is not None


def test_a_defect_fails_the_frame(
    open_stream: Callable[..., SessionStream], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    stream = open_stream()
    with monkeypatch.context() as patched:
        patched.setattr(session_steps, "step_compiled", fail)
        reply = Reply.FromString(stream.reply(step(3), "local"))
    assert type(from_proto(reply.error)) is LogitportError
    assert "ZeroDivisionError" in caplog.text
    assert computed(stream, step(4)) is not None


def test_a_step_over_the_memory_limit_is_left_to_python(open_stream: Callable[..., SessionStream]) -> None:
    stream = open_stream()
    assert computed(stream, step(3)) is not None
    assert stream._frames.session is not None
    session = stream._frames.session
    account, (request,) = session.account, session.batch.requests.values()
    rest = account.limit - account.held
    assert account.add(rest)
    seq = 4
    while (reply := computed(stream, step(seq, base=seq - 2))) is not None:
        assert Reply.FromString(reply).HasField("edits")
        seq += 1
    length = len(request.history)
    refused = Reply.FromString(stream.reply(step(seq, base=seq - 2), "local"))
    (failure,) = refused.edits.failures
    assert type(from_proto(failure.error)) is LimitExceeded
    assert len(request.history) == length
    account.remove(rest)
    assert session.batch.fully_compiled is None, "the request has failed"
