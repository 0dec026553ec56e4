"""What the sessions and calls of a principal's process count, and what its reports contain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport_builtins import DisallowedTokens
from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics import Metrics
from logitport_server.metrics.counts import MAX_REPORTED_NAMES, Counts, SessionLoads
from logitport_server.metrics.session_counts import SessionCounts
from logitport_server.transports.session_stream import SessionStream
from logitport_server.transports.session_table import SessionTable
from logitport_session.engine_session.session_admissions import Admitted
from logitport_session.steps.outcome import StepDurations
from tests.recorded_metrics import RecordedMetrics, samples
from tests.server.conftest import DenyHistory
from tests.session_streams import addition, step_of
from tests.tiers import examples

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "Ban (sha256:0123456789ab)"


def failures(*codes: Any) -> list[common_pb2.Failure]:
    return [common_pb2.Failure(error=common_pb2.Error(code=code, processor=NAME)) for code in codes]


SECONDS = st.sampled_from([0.0, 5e-5, 0.00006, 0.003, 0.2, 9.0])
NAMES = st.sampled_from(["thinking_budget", NAME, "Other", "", "(others)", "x" * 200, "x" * 201, "line\nend"])
CODES = st.lists(st.sampled_from(common_pb2.ErrorCode.values()), max_size=3)


@st.composite
def steps(draw: Any) -> Callable[[SessionCounts], object]:
    kind = draw(
        st.sampled_from([processing_pb2.StepEdits, processing_pb2.StepLogitsEdited, processing_pb2.ApplyResponse])
    )
    applied = draw(st.dictionaries(NAMES, st.integers(1, 9), max_size=2))
    rows = [common_pb2.RowsApplied(processor=name, rows=number) for name, number in applied.items()]
    failed = draw(CODES)
    refused = draw(st.integers(0, len(failed)))
    reply = kind(applied=rows, failures=failures(*failed))
    durations = draw(
        st.none() | st.builds(StepDurations, st.dictionaries(NAMES, SECONDS, max_size=2), st.none() | SECONDS)
    )
    transport, seconds, queued = draw(st.sampled_from(["unary", "grpc", "local"])), draw(SECONDS), draw(SECONDS)
    return lambda to: to.step(reply, seconds, transport, durations, queued, refused=refused)


@st.composite
def others(draw: Any) -> Callable[[SessionCounts], object]:
    memory, codes, seconds = draw(st.sampled_from(["inline", "host", "device"])), draw(CODES), draw(SECONDS)
    admitted = Admitted(draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.lists(SECONDS, max_size=2)))
    size = draw(st.integers(0, 1000))
    events: list[Callable[[SessionCounts], object]] = [
        lambda to: to.logits_read(memory),
        lambda to: to.admitted(admitted, seconds),
        lambda to: to.local_frame(size, 2 * size),
        lambda to: to.requests_refused(failures(*codes)),
    ]
    return events[draw(st.integers(0, len(events) - 1))]


def sent(counts: SessionCounts) -> Counts:
    """What the front door receives of the counts since the last call."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(counts.take()), type=Counts)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(steps() | others() | st.none(), max_size=25))
def test_the_sum_of_any_reports_is_one_report_of_all(events: list[Callable[[SessionCounts], object] | None]) -> None:
    """None stands for a report."""
    split, whole = Metrics(), Metrics()
    counts, all_counts = SessionCounts(), SessionCounts()
    for event in events:
        if event is None:
            split.add_report("alice", sent(counts))
        else:
            event(counts)
            event(all_counts)
    split.add_report("alice", sent(counts))
    whole.add_report("alice", sent(all_counts))
    assert samples(split) == pytest.approx(samples(whole))
    assert sent(counts) == Counts()


@pytest.fixture
def counts() -> SessionCounts:
    return SessionCounts(["thinking_budget"])


def test_the_load_is_that_of_open_sessions_and_its_changes_are_signalled(
    counts: SessionCounts, open_engine: Any
) -> None:
    engine = open_engine(8)
    assert counts.loads() == SessionLoads()
    for change, loads in (
        (lambda: counts.session_opened(engine.session), SessionLoads(sessions=1)),
        (lambda: engine.add(0, []) and counts.admitted(Admitted(), 0.1), SessionLoads(sessions=1, requests=1)),
        (counts.requests_removed, SessionLoads(sessions=1, requests=1)),
        (lambda: counts.session_closed(engine.session), SessionLoads()),
    ):
        counts.changed.clear()
        change()
        assert counts.changed.is_set()
        assert counts.loads() == loads


def test_the_number_of_names_in_a_report_is_limited(counts: SessionCounts) -> None:
    for number in range(1000):
        rows = [common_pb2.RowsApplied(processor=f"Ban{number}", rows=1)]
        counts.step(processing_pb2.StepEdits(applied=rows), 0.001, "local")
    own = [common_pb2.RowsApplied(processor="thinking_budget", rows=3)]
    unknown = failures(common_pb2.ERROR_CODE_NOT_FOUND)
    counts.step(processing_pb2.StepEdits(applied=own, failures=unknown), 1.0, "local")
    processors = sent(counts).processors
    assert len(processors) == MAX_REPORTED_NAMES + 3
    assert processors["(others)"].rows == 1000 - MAX_REPORTED_NAMES
    assert processors["thinking_budget"].rows == 3
    assert processors[""].failed == {common_pb2.ERROR_CODE_NOT_FOUND: 1}


def test_long_names_with_the_same_label_are_one(counts: SessionCounts) -> None:
    rows = [common_pb2.RowsApplied(processor="x" * 10_000 + end, rows=1) for end in "ab"]
    counts.step(processing_pb2.StepEdits(applied=rows), 0.001, "local")
    assert {len(name): tally.rows for name, tally in sent(counts).processors.items()} == {128: 2}


@pytest.mark.parametrize("processor", ["DisallowedTokens", "DenyHistory"])
@pytest.mark.parametrize("closes", [False, True])
def test_what_a_stream_counts(processor: str, closes: bool, open_engine: Any) -> None:
    """Steps of the compiled core, too."""
    recorded, session_table = RecordedMetrics(), SessionTable()
    session = open_engine(100, DisallowedTokens, DenyHistory).session
    stream = SessionStream(lambda _: session, recorded.counts, None, session_table=session_table, number=7)
    frames: list[dict[str, Any]] = [
        {"open": processing_pb2.OpenSession(vocab_size=100, datatype="FP32", can_move=True)},
        addition([processor], ["unknown"], params=b'{"token_ids": [7, 8]}'),
        *[step_of([])] * 3,
    ]
    for seq, frame in enumerate(frames, 1):
        data = processing_pb2.SessionRequest(seq=seq, **frame).SerializeToString()
        assert not processing_pb2.SessionResponse.FromString(stream.reply(data, "grpc")).HasField("error")
        stream.record()
    if closes:
        stream.close()
    grown = {key: value for key, value in samples(recorded.read()).items() if value and "seconds" not in key[0]}
    load = {} if closes else {("logitport_sessions",): 1, ("logitport_requests",): 1}
    assert grown == {
        **load,
        ("logitport_steps_total", ("transport", "grpc")): 3,
        ("logitport_rows_applied_total", ("processor", processor)): 3,
        ("logitport_requests_refused_total", ("code", "NOT_FOUND"), ("principal", "alice")): 1,
    }
    for name, labels in (
        ("logitport_step_seconds_count", {"transport": "grpc", "part": "edits"}),
        ("logitport_step_queue_seconds_count", {"transport": "grpc"}),
        ("logitport_processor_step_seconds_count", {"processor": processor}),
        ("logitport_admission_queue_seconds_count", {}),
    ):
        assert recorded.value(name, **labels) == (1 if "admission" in name else 3)
    assert [session.number for session in session_table.opened_after(0, 9)] == ([] if closes else [7])
    assert session_table.movable_sessions == (0 if closes else 1)
