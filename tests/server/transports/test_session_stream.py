"""The stream of one engine: frame numbers, repeated replies, and the order of closing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import InvalidArgument, LogitportError, NotFound, SessionClosed
from logitport.core import tensors
from logitport.errors import from_proto
from logitport_proto import processing_pb2
from logitport_server.access.call_guard import AuthorizedCall
from logitport_server.transports.session_stream import SessionStream
from logitport_session.engine_session import session_steps
from logitport_session.trust.principals import ANONYMOUS
from tests.programs.runtime.build import min_p
from tests.recorded_metrics import RecordedMetrics
from tests.server.conftest import int32
from tests.session_streams import addition, step_of
from tests.session_streams import answer as reply_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport_session.steps.outcome import StepDurations
    from tests.server.conftest import Submitted

VOCAB = 1000
Frame = processing_pb2.SessionRequest
Reply = processing_pb2.SessionResponse
METRICS = RecordedMetrics()
OPEN = {"open": processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")}


@pytest.fixture
def stream(open_engine: Any) -> Iterator[SessionStream]:
    with ExitStack() as sessions:

        def open_session(opening: processing_pb2.OpenSession) -> Any:
            if not opening.vocab_size:
                raise InvalidArgument("vocab_size is 0")
            return sessions.enter_context(closing(open_engine(opening.vocab_size).session))

        yield SessionStream(open_session, METRICS.counts, None)


def answer(stream: SessionStream, seq: int, **frame: Any) -> Reply:
    reply = reply_to(stream, Frame(seq=seq, **frame), "grpc")
    assert reply.seq == seq
    return reply


def refusal(reply: Reply) -> LogitportError:
    assert reply.WhichOneof("frame") == "error"
    return from_proto(reply.error)


def add(processor: str) -> dict[str, Any]:
    return addition([processor], prompt=[1])


def step(*new_token_ids: int, base: int = 1) -> dict[str, Any]:
    """A step of slot 0 with the history [1], [1, 2], ..."""
    return step_of(range(1, base + 1), *new_token_ids)


def logits() -> dict[str, Any]:
    message = processing_pb2.StepLogits()
    tensors.write(message.logits, torch.zeros(1, VOCAB))
    return {"logits": message}


def test_replies_to_valid_frames(stream: SessionStream) -> None:
    opened = answer(stream, 1, **OPEN).opened
    assert (opened.max_requests, len(opened.session_id), opened.HasField("local_transport")) == (4, 32, False)
    assert opened.server_version
    assert answer(stream, 2, **add("DenyHistory")).added.reads_logits == b"\0"
    assert answer(stream, 3, **step(2)).edits.edits.ids == int32(1, 2)
    removal = processing_pb2.RemoveRequests(slots=int32(0), generations=int32(0))
    assert answer(stream, 4, remove=removal).WhichOneof("frame") == "removed"


def test_a_session_is_opened_once_by_a_valid_opening_and_each_frame_has_content(stream: SessionStream) -> None:
    first = [add("DenyHistory"), step(), logits(), {}, {"remove": {}}]
    for seq, frame in enumerate(first, 1):
        assert type(refusal(answer(stream, seq, **frame))) is SessionClosed
    assert type(refusal(answer(stream, 6, open=processing_pb2.OpenSession()))) is InvalidArgument
    assert answer(stream, 7, **OPEN).HasField("opened")
    assert "open already" in str(refusal(answer(stream, 8, **OPEN)))
    assert "must set one of" in str(refusal(answer(stream, 9)))
    assert answer(stream, 10, **add("DenyHistory")).HasField("added")


def test_a_stream_that_is_closed_does_not_wait_for_admissions(open_engine: Any, submitted: Submitted) -> None:
    """The session counts for the quotas until they have ended."""
    ended: list[bool] = []
    engine = open_engine(VOCAB, submit=submitted)
    call = AuthorizedCall(ANONYMOUS, lambda: ended.append(True))
    release = call.hold()
    stream = SessionStream(lambda _: engine.session, METRICS.counts, None, hold=call.hold)
    answer(stream, 1, **OPEN)
    answer(stream, 2, **add_in_background("AddOutputs"))
    work, end = submitted.begin()
    stream.close()
    release()
    assert engine.session.pending == 0
    assert not ended
    work()
    end()
    assert len(engine.session) == 0
    assert ended == [True]


def test_the_end_of_an_admission_is_reported_once_also_by_a_repeated_frame(
    open_engine: Any, submitted: Submitted
) -> None:
    engine = open_engine(VOCAB, submit=submitted)
    stream = SessionStream(lambda _: engine.session, METRICS.counts, None)
    answer(stream, 1, **OPEN)
    answer(stream, 2, **add("DenyHistory"))
    assert answer(stream, 3, **add_in_background("AddOutputs")).added.pending == b"\1"
    assert answer(stream, 4, **step(2)).edits.ended_admissions == 0
    assert not answer(stream, 5, **add_in_background()).added.ended
    submitted.run()
    assert answer(stream, 6, **step(3, base=2)).edits.ended_admissions == 1
    first = answer(stream, 7, **add_in_background())
    assert [(one.slot, one.generation) for one in first.added.ended] == [(1, 0)]
    assert answer(stream, 7, **add_in_background()) == first
    assert not answer(stream, 8, **add_in_background()).added.ended


def add_in_background(*processors: str) -> dict[str, Any]:
    """Add requests with these processors to the slots 1, 2, ..."""
    return addition(*([one] for one in processors), slot=1, in_background=True)


def test_repeated_logits_are_not_processed_twice(stream: SessionStream) -> None:
    answer(stream, 1, **OPEN)
    answer(stream, 2, **add("AddOutputs"))
    answer(stream, 3, **step(2))
    assert tensors.to_torch(answer(stream, 4, **logits()).logits.logits)[0, 0] == 1
    assert "was sent twice" in str(refusal(answer(stream, 4, **logits())))
    assert answer(stream, 5, **step(3, base=2)).edits.logits_rows == int32(0)


def test_a_repeated_reply_has_its_descriptors(stream: SessionStream) -> None:
    answer(stream, 1, **OPEN)
    request = Frame(seq=2, open_region=processing_pb2.OpenRegion(size_bytes=8))
    first = reply_to(stream, request, "local"), list(stream.descriptors)
    assert len(first[1]) == 1
    assert (reply_to(stream, request, "local"), list(stream.descriptors)) == first
    reply_to(stream, Frame(seq=3, **add("DenyHistory")), "local")
    assert stream.descriptors == []


def test_frame_numbers_increase_by_one(stream: SessionStream) -> None:
    assert "frame 0 follows no frame" in str(refusal(answer(stream, 0, **OPEN)))
    answer(stream, 1, **OPEN)
    answer(stream, 2, **add("DenyHistory"))
    for seq in (0, 1, 4, 5, 2**64 - 1):
        assert f"frame {seq} follows frame 2" in str(refusal(answer(stream, seq, **step(9))))
    assert answer(stream, 3, **step(2)).edits.edits.ids == int32(1, 2)


def test_a_defect_fails_only_one_frame(stream: SessionStream, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(stream, 1, **OPEN)
    answer(stream, 2, **add("DenyHistory"))
    with monkeypatch.context() as patch:
        patch.setattr(session_steps, "step", broken)
        assert type(refusal(answer(stream, 3, **step()))) is LogitportError
    assert answer(stream, 4, **step()).HasField("edits")


def broken(*_: Any) -> None:
    raise ZeroDivisionError("\ud800")


class LocalConnection:
    """A local transport that records how it was closed."""

    finishes: bool | None = None

    def close(self, *, finish: bool) -> None:
        self.finishes = finish


def opened(stream: SessionStream) -> Callable[[], bool]:
    answer(stream, 1, **OPEN)
    return lambda: stream._frames.session is not None


def test_a_session_stays_open_until_its_local_transport_is_detached(stream: SessionStream) -> None:
    alive, local = opened(stream), LocalConnection()
    assert stream.attach(local)  # type: ignore[arg-type]
    assert "uses its local transport" in str(refusal(answer(stream, 2, **add("DenyHistory"))))
    stream.close()
    assert local.finishes is False
    assert alive()
    stream.detach()
    assert not alive()
    assert not stream.attach(LocalConnection())  # type: ignore[arg-type]


def test_a_session_counts_for_the_quotas_until_its_local_connection_has_ended(open_engine: Any) -> None:
    ended: list[bool] = []
    call = AuthorizedCall(ANONYMOUS, lambda: ended.append(True))
    release = call.hold()
    stream = SessionStream(lambda _: open_engine(VOCAB).session, METRICS.counts, None, hold=call.hold)
    opened(stream)
    connection_ended = stream.attach(LocalConnection())  # type: ignore[arg-type]
    assert connection_ended is not None
    stream.close()
    release()  # as the end of the gRPC call
    stream.detach()
    assert not ended
    connection_ended()
    assert ended == [True]
    assert stream.attach(LocalConnection()) is None  # type: ignore[arg-type]
    assert ended == [True]


def test_a_server_that_drains_lets_the_frame_in_progress_finish(stream: SessionStream) -> None:
    local = LocalConnection()
    opened(stream)
    stream.attach(local)  # type: ignore[arg-type]
    stream.close(finish=True)
    assert local.finishes is True


def test_a_local_transport_may_end_before_the_stream_which_ends_the_session(stream: SessionStream) -> None:
    alive = opened(stream)
    stream.attach(LocalConnection())  # type: ignore[arg-type]
    stream.detach()
    assert alive()
    for _ in range(2):
        stream.close()
        assert not alive()


def test_a_frame_of_the_local_transport_waits_for_the_frame_in_progress(
    stream: SessionStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(stream, 1, **OPEN)
    answer(stream, 2, **add("DenyHistory"))
    begun, finish, calls = threading.Event(), threading.Event(), []
    real = session_steps.step

    def slow(*args: Any) -> StepDurations:
        calls.append(threading.current_thread())
        begun.set()
        assert finish.wait(60)
        return real(*args)

    monkeypatch.setattr(session_steps, "step", slow)
    frame = Frame(seq=3, **step(2))
    with ThreadPoolExecutor(2) as threads:
        by_grpc = threads.submit(reply_to, stream, frame, "grpc")
        assert begun.wait(60)
        by_local_transport = threads.submit(reply_to, stream, frame, "local")
        # The event loop must not wait for it.
        assert type(refusal(reply_to(stream, frame, "grpc"))) is InvalidArgument
        assert not by_local_transport.done()
        finish.set()
        assert by_grpc.result(60) == by_local_transport.result(60)
    assert len(calls) == 1


def test_a_reply_is_counted_once_when_it_is_sent(stream: SessionStream) -> None:
    def counted() -> float:
        return METRICS.value("logitport_steps_total", transport="grpc") or 0.0

    answer(stream, 1, **OPEN)
    answer(stream, 2, **add("DenyHistory"))
    stream.record()
    before = counted()
    answer(stream, 3, **step())
    assert counted() == before
    stream.record()
    stream.record()
    answer(stream, 3, **step())  # a repeated reply
    stream.record()
    assert counted() == before + 1


def test_programs_are_sent_to_the_engine_that_runs_them(open_engine: Any) -> None:
    def open_session(opening: processing_pb2.OpenSession) -> Any:
        engine = open_engine(VOCAB, runs_programs=opening.runs_programs)
        engine.registry.toys["min_p"] = verified
        return engine.session

    verified = min_p()
    digest = verified.program.digest
    stream = SessionStream(open_session, METRICS.counts, None)
    answer(stream, 1, open=processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32", runs_programs=True))
    added = add("min_p")
    added["add"].requests[0].request.processors[0].params = b'{"min_p": 0.1}'
    assert [*answer(stream, 2, **added).added.chains[0].programs] == [digest]
    frame = {"get_programs": processing_pb2.GetPrograms(digests=[digest])}
    assert [*answer(stream, 3, **frame).programs.programs] == [verified.program.to_bytes()]
    wrong = {"get_programs": processing_pb2.GetPrograms(digests=[digest, "0" * 64])}
    assert isinstance(refusal(answer(stream, 4, **wrong)), NotFound)
    assert answer(stream, 5, get_programs=processing_pb2.GetPrograms()).WhichOneof("frame") == "programs"
    assert answer(stream, 6, **step(2)).edits.logits_rows == b""
