"""What a principal's process records, and what its reports contain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Union

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitport_builtins import DisallowedTokens
from logitport_proto import common_pb2, processing_pb2
from logitport_server.metrics import Metrics
from logitport_server.metrics.counts import MAX_REPORTED_NAMES, SessionLoads
from logitport_server.principal_process import messages
from logitport_server.principal_process.recorder import Recorder
from logitport_server.registry.loader import Loader
from logitport_server.transports.departures import Departures
from logitport_server.transports.stream import SessionStream
from logitport_session.session_admissions import Admitted
from logitport_session.steps.step_time import Spending
from tests.server.conftest import DenyHistory, int32

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_server.principal_process.report_messages import MetricsReport

NAME = "Ban (sha256:0123456789ab)"


class Reports:
    """Stands for a link: keeps the reports as the front door decodes them."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(Union[messages.TO_FRONT_DOOR])
        self.received: list[MetricsReport] = []

    def post(self, message: Any) -> None:
        self.received.append(self._decoder.decode(msgspec.msgpack.encode(message)))

    def add_to(self, metrics: Metrics) -> None:
        for report in self.received:
            metrics.add_report("alice", report.counts)


def samples(metrics: Metrics) -> dict[Any, float]:
    """The values of all metrics but those of this process."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if not sample.name.startswith(("process_", "logitport_build_info")) and not sample.name.endswith("_created")
    }


def failures(*codes: Any) -> list[common_pb2.Failure]:
    return [common_pb2.Failure(error=common_pb2.Error(code=code, processor=NAME)) for code in codes]


SECONDS = st.sampled_from([0.0, 5e-5, 0.00006, 0.003, 0.2, 9.0])
NAMES = st.sampled_from(["thinking_budget", NAME, "Other", "", "(others)", "x" * 200, "x" * 201, "line\nend"])
CODES = st.lists(st.sampled_from(common_pb2.ErrorCode.values()), max_size=3)


@st.composite
def steps(draw: Any) -> Callable[[Any], object]:
    kind = draw(
        st.sampled_from([processing_pb2.StepEdits, processing_pb2.StepLogitsEdited, processing_pb2.ApplyResponse])
    )
    applied = draw(st.dictionaries(NAMES, st.integers(1, 9), max_size=2))
    rows = [common_pb2.RowsApplied(processor=name, rows=number) for name, number in applied.items()]
    failed = draw(CODES)
    refused = draw(st.integers(0, len(failed)))
    reply = kind(applied=rows, failures=failures(*failed))
    spending = draw(st.none() | st.builds(Spending, st.dictionaries(NAMES, SECONDS, max_size=2), st.none() | SECONDS))
    transport, seconds, queued = draw(st.sampled_from(["unary", "grpc", "local"])), draw(SECONDS), draw(SECONDS)
    return lambda to: to.step(reply, seconds, transport, "alice", spending, queued, refused=refused)


@st.composite
def others(draw: Any) -> Callable[[Any], object]:
    memory, codes, seconds = draw(st.sampled_from(["inline", "host", "device"])), draw(CODES), draw(SECONDS)
    admitted = Admitted(draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.lists(SECONDS, max_size=2)))
    size = draw(st.integers(0, 1000))
    events: list[Callable[[Any], object]] = [
        lambda to: to.logits_read(memory),
        lambda to: to.admitted(admitted, seconds),
        lambda to: to.local_frame(size, 2 * size),
        lambda to: to.received["grpc"](size),
        lambda to: to.sent["unary"](size),
        lambda to: to.refusals.requests(failures(*codes), "alice"),
    ]
    return events[draw(st.integers(0, len(events) - 1))]


@settings(deadline=None, max_examples=60)
@given(st.lists(steps() | others() | st.none(), max_size=25))
def test_the_sum_of_all_reports_is_what_metrics_record(events: list[Callable[[Any], object] | None]) -> None:
    direct, reported, reports = Metrics(Loader(1)), Metrics(Loader(1)), Reports()
    recorder = Recorder(Loader(1), Departures())
    for event in events:
        if event is None:
            recorder.report(reports)  # type: ignore[arg-type]
        else:
            event(direct)
            event(recorder)
    recorder.report(reports)  # type: ignore[arg-type]
    reports.add_to(reported)
    assert samples(reported) == pytest.approx(samples(direct))


@pytest.fixture
def departures() -> Departures:
    return Departures()


@pytest.fixture
def recorder(departures: Departures) -> Recorder:
    return Recorder(Loader(1), departures, ["thinking_budget"])


def reported(recorder: Recorder) -> list[MetricsReport]:
    reports = Reports()
    recorder.report(reports)  # type: ignore[arg-type]
    return reports.received


def test_a_report_is_sent_only_if_something_has_changed(recorder: Recorder, open_engine: Any) -> None:
    assert reported(recorder) == []
    recorder.logits_read("host")
    assert reported(recorder)[0].counts.logits_read == {"host": 1}
    assert reported(recorder) == []
    engine = open_engine(8)
    recorder.session_opened(engine.session)
    engine.add(0, [])
    assert reported(recorder)[0].loads == SessionLoads(sessions=1, requests=1)
    assert reported(recorder) == []
    recorder.session_closed(engine.session)
    assert reported(recorder)[0].loads == SessionLoads()


def test_a_change_of_the_load_is_signalled(recorder: Recorder, open_engine: Any) -> None:
    engine = open_engine(8)
    for change in (
        lambda: recorder.session_opened(engine.session),
        lambda: recorder.admitted(Admitted(), 0.1),
        recorder.requests_removed,
        lambda: recorder.session_closed(engine.session),
    ):
        recorder.changed.clear()
        change()
        assert recorder.changed.is_set()


def test_the_number_of_names_in_a_report_is_limited(recorder: Recorder) -> None:
    for number in range(1000):
        rows = [common_pb2.RowsApplied(processor=f"Ban{number}", rows=1)]
        recorder.step(processing_pb2.StepEdits(applied=rows), 0.001, "local")
    own = [common_pb2.RowsApplied(processor="thinking_budget", rows=3)]
    unknown = failures(common_pb2.ERROR_CODE_NOT_FOUND)
    recorder.step(processing_pb2.StepEdits(applied=own, failures=unknown), 1.0, "local")
    (report,) = reported(recorder)
    processors = report.counts.processors
    assert len(processors) == MAX_REPORTED_NAMES + 3
    assert processors["(others)"].rows == 1000 - MAX_REPORTED_NAMES
    assert processors["thinking_budget"].rows == 3
    assert processors[""].failed == {common_pb2.ERROR_CODE_NOT_FOUND: 1}


def test_long_names_with_the_same_label_are_one(recorder: Recorder) -> None:
    rows = [common_pb2.RowsApplied(processor="x" * 10_000 + end, rows=1) for end in "ab"]
    recorder.step(processing_pb2.StepEdits(applied=rows), 0.001, "local")
    (report,) = reported(recorder)
    assert {len(name): tally.rows for name, tally in report.counts.processors.items()} == {128: 2}


def test_counters_of_the_executor_are_reported_by_their_growth(departures: Departures) -> None:
    gpu = SimpleNamespace(calls={"device": 2, "host": 0}, refusals=1)
    executor = SimpleNamespace(hits=3, misses=4, gpu=gpu)
    recorder = Recorder(executor, departures)
    (first,) = reported(recorder)
    assert (first.counts.loader_hits, first.counts.loader_misses, first.counts.worker_gpus_refused) == (3, 4, 1)
    assert first.counts.worker_logits == {"device": 2}
    assert reported(recorder) == []
    executor.hits = 5
    gpu.calls = {"device": 2, "host": 7}
    (second,) = reported(recorder)
    assert (second.counts.loader_hits, second.counts.loader_misses) == (2, 0)
    assert second.counts.worker_logits == {"host": 7}


@pytest.mark.parametrize("processor", ["DisallowedTokens", "DenyHistory"])
@pytest.mark.parametrize("closes", [False, True])
def test_a_stream_records_as_with_metrics(processor: str, closes: bool, open_engine: Any) -> None:
    """Steps of the compiled core, too."""

    def serve(to: Any, departures: Departures) -> None:
        session = open_engine(100, DisallowedTokens, DenyHistory).session
        stream = SessionStream(lambda _: session, to, None, departures=departures, number=7)
        call = common_pb2.ProcessorCall(
            processor=common_pb2.Processor(builtin=processor), params=b'{"token_ids": [7, 8]}'
        )
        added = processing_pb2.SlottedRequest(slot=0, request=common_pb2.Request(processors=[call]))
        step = processing_pb2.Step(slots=int32(0), generations=int32(0), base_lengths=int32(0), history_crcs=int32(0))
        frames: list[dict[str, Any]] = [
            {"open": processing_pb2.OpenSession(vocab_size=100, datatype="FP32", can_move=True)},
            {"add": processing_pb2.AddRequests(requests=[added])},
            *[{"step": step}] * 3,
        ]
        for seq, frame in enumerate(frames, 1):
            data = processing_pb2.SessionRequest(seq=seq, **frame).SerializeToString()
            assert not processing_pb2.SessionResponse.FromString(stream.reply(data, "grpc")).HasField("error")
            stream.record()
        if closes:
            stream.close()

    direct, departures = Metrics(Loader(1)), Departures()
    recorder = Recorder(Loader(1), departures)
    serve(direct, Departures())
    serve(recorder, departures)
    (report,) = reported(recorder)
    added = Metrics(Loader(1))
    added.add_report("alice", report.counts)
    added.loads[recorder] = report.loads
    for name in ("logitport_steps_total", "logitport_step_queue_seconds_count"):
        assert added.registry.get_sample_value(name, {"transport": "grpc"}) == 3
    present, expected = samples(added), samples(direct)
    assert present.keys() == expected.keys()
    counted = [key for key in present if "seconds" not in key[0]]
    assert {key: present[key] for key in counted} == {key: expected[key] for key in counted}
    assert report.loads == (SessionLoads() if closes else SessionLoads(1, 1, movable_sessions=1))
    assert [session.number for session in departures.opened_after(0, 9)] == ([] if closes else [7])
