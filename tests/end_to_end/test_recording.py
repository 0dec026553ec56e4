"""Recorded sessions with a real server: drafts, rewinds, killed engines, full files; sessions that are not recorded."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from logitport import Client, InvalidArgument, Request
from logitport.session import PendingStep, Session
from logitport.session.session import Session as PlainSession
from logitport.shipping.calls import unpack_int32
from logitport_recording import RecordOptions
from logitport_recording.reading.event_fields import json_object
from logitport_recording.reading.reader import read_recording
from logitport_recording.record_options import VARIABLE
from logitport_testing.replaying.replacement import Replacement
from logitport_testing.replaying.replay import replay
from logitport_testing.replaying.row_difference import effect_of
from tests.conftest import environment

if TYPE_CHECKING:
    from pathlib import Path

    from logitport_recording.reading.reader import RecordedRequest, RecordedSession
    from tests.conftest import RunningServer

VOCAB = 32
NGRAMS = ("no_repeat_ngram", {"ngram_size": 1})
BANS = ("disallowed_tokens", {"token_ids": [7]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.lprec"


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, VOCAB)).astype(np.float32)


def the_session(path: Path) -> RecordedSession:
    recording = read_recording(path)
    (session,) = recording.sessions
    return session


def the_request(path: Path) -> RecordedRequest:
    (request,) = the_session(path).requests
    return request


def ids(column: bytes) -> list[int]:
    found: list[int] = unpack_int32(column).tolist()
    return found


def denied(request: RecordedRequest) -> list[list[list[int]]]:
    """The denied ids of each row of each step."""
    return [
        [np.flatnonzero(np.isinf(effect_of(row.edits, VOCAB))).tolist() for row in step.rows] for step in request.steps
    ]


def test_histories_rewinds_and_drafts(client: Client, path: Path) -> None:
    with client.session(vocab_size=VOCAB, record=path, max_draft_tokens=2, engine="test 1") as session:
        handle = session.add(Request([1, 2], [3], [NGRAMS], "one", {"temperature": 0.5}))
        session.step({handle: []}).apply(rows(1))
        session.step({handle: [4, 5]}).apply(rows(1))
        session.rewind(handle, 4)
        session.step({handle: [6]}, drafts={handle: [7, 8]}).apply(rows(3))
        session.remove(handle)
    recorded, request = the_session(path), the_request(path)
    assert (recorded.began.opening.vocab_size, recorded.began.opening.engine) == (VOCAB, "test 1")
    assert recorded.stopped is not None
    assert (recorded.stopped.reason, recorded.dropped_steps) == ("closed", 0)
    began = request.began.request
    assert (began.request_id, ids(began.prompt_ids), ids(began.output_ids)) == ("one", [1, 2], [3])
    assert json.loads(began.sampling_params) == {"temperature": 0.5}
    (processor,) = request.began.processors
    assert (processor.builtin, json_object(processor.params)) == NGRAMS
    assert request.ended
    assert [(step.base_length, ids(step.new_token_ids), ids(step.draft_token_ids)) for step in request.steps] == [
        (3, [], []),
        (3, [4, 5], []),
        (4, [6], [7, 8]),
    ]
    assert [[row.draft_offset for row in step.rows] for step in request.steps] == [[0], [0], [0, 1, 2]]
    assert denied(request) == [
        [[1, 2, 3]],
        [[1, 2, 3, 4, 5]],
        [[1, 2, 3, 4, 6], [1, 2, 3, 4, 6, 7], [1, 2, 3, 4, 6, 7, 8]],
    ]


def test_a_tree_of_drafts_is_recorded_and_replayed(client: Client, path: Path) -> None:
    with client.session(vocab_size=VOCAB, record=path, max_draft_tokens=4) as session:
        handle = session.add(Request([1], [2], [NGRAMS], "one"))
        tree = {"drafts": {handle: [5, 6, 7, 8]}, "draft_parents": {handle: [-1, -1, 0, 1]}}
        session.step({handle: []}, **tree).apply(rows(5))
        session.step({handle: [6, 8, 9]}).apply(rows(1))
        session.remove(handle)
    request = the_request(path)
    assert [ids(step.draft_parents) for step in request.steps] == [[-1, -1, 0, 1], []]
    assert denied(request)[0] == [[1, 2], [1, 2, 5], [1, 2, 6], [1, 2, 5, 7], [1, 2, 6, 8]]
    again = replay(read_recording(path), [Replacement("no_repeat_ngram", "no_repeat_ngram")])
    (replayed,) = again.requests
    assert (replayed.compared, replayed.rows, replayed.error) == (6, [], "")


def test_events(client: Client, path: Path) -> None:
    thinking = {"thinking_budget": 2, "thinking_start_ids": [2], "thinking_end_ids": [9]}
    with client.session(vocab_size=VOCAB, record=path, max_draft_tokens=2) as session:
        first = session.add(Request([1], processors=[BANS]))
        handle = session.add(Request([1, 2], processors=[BANS, ("thinking_budget", thinking)]))
        session.step({first: [], handle: []}, drafts={handle: [3, 4]}).apply(rows(4))
        session.step({first: [5], handle: [3]}).apply(rows(2))
        session.step({first: [6], handle: [4]}).apply(rows(2))
    (_, quiet), (_, one) = [(request, request.steps) for request in the_session(path).requests]
    found = [[(event.processor, event.name, event.position, event.slot) for event in step.events] for step in one]
    assert found == [[("thinking_budget", "budget_hit", 2, 0)], [], [("thinking_budget", "budget_hit", 2, 0)]]
    assert not any(step.events for step in quiet)


@pytest.mark.parametrize("dtype", [np.float32, torch.bfloat16])
def test_sampled_logits(client: Client, path: Path, dtype: Any) -> None:
    options = RecordOptions(path, sample_every=2, top_k=3)
    chain = [("disallowed_tokens", {"token_ids": [9]}), ("temperature", {"temperature": 0.5})]
    given = []
    with client.session(vocab_size=VOCAB, dtype=dtype, record=options) as session:
        handle = session.add(Request([1], processors=chain))
        for step in range(3):
            logits: Any = rows(1, step)
            logits[0, 9] = 50.0
            if dtype is not np.float32:
                logits = torch.from_numpy(logits).to(dtype)
            given.append(torch.as_tensor(logits).float()[0].numpy().copy())
            session.step({handle: [1] if step else []}).apply(logits)
    for step, before in zip(the_request(path).steps, given, strict=True):
        (row,) = step.rows
        assert not row.HasField("edits")  # the chain reads logits
        assert row.HasField("before") == row.HasField("after") == (step.index != 1)
        if step.index == 1:
            continue
        best = np.argsort(-before)
        assert ids(row.before.ids) == best[:3].tolist()
        assert np.frombuffer(row.before.logits, "<f4").tolist() == before[best[:3]].tolist()
        assert row.before.log_sum == pytest.approx(float(torch.from_numpy(before).double().logsumexp(0)))
        after = dict(zip(ids(row.after.ids), np.frombuffer(row.after.logits, "<f4").tolist(), strict=True))
        assert after.keys() == set(best[:4].tolist())
        assert after[9] == -np.inf
        assert after[int(best[1])] == pytest.approx(2 * before[best[1]], rel=0.01)


def test_a_shared_batch_is_not_greedy(client: Client, path: Path) -> None:
    with client.session(vocab_size=VOCAB, record=RecordOptions(path, requests=["greedy"])) as session:
        greedy = session.add(Request([1], request_id="greedy", sampling_params={"temperature": 0}))
        other = session.add(Request([1], request_id="other"))
        session.step({greedy: [], other: []}).apply(rows(2))
        session.step({greedy: [1]}).apply(rows(1))
    assert [step.greedy for step in the_request(path).steps] == [False, True]


def test_edits_without_logits_and_unfinished_steps(client: Client, path: Path) -> None:
    with client.session(vocab_size=VOCAB, record=path) as session:
        handle = session.add(Request([1], processors=[NGRAMS]))
        session.step({handle: []}).edits()
        session.step({handle: [2]})
        session.step({handle: [3]}).apply(rows(1))
    request = the_request(path)
    assert [step.unfinished for step in request.steps] == [False, True, False]
    assert [row.HasField("edits") for step in request.steps for row in step.rows] == [True, False, True]
    assert denied(request) == [[[1]], [[]], [[1, 2, 3]]]


def test_failures_are_recorded(client: Client, path: Path) -> None:
    with client.session(vocab_size=VOCAB, record=path) as session:
        handle = session.add(Request([1], processors=[NGRAMS]))
        result = session.step({handle: [VOCAB]}).apply(rows(1), check=False)
        assert handle in result.failures
    (step,) = the_request(path).steps
    assert f"token id {VOCAB}" in step.error
    assert ids(step.new_token_ids) == []


ENGINE = """
import os, signal, sys
import numpy as np
from logitport import Client, Request
from logitport_recording import RecordOptions
session = Client(sys.argv[1]).session(vocab_size=32, record=RecordOptions(sys.argv[2], sample_every=1))
handle = session.add(Request([1], processors=[("no_repeat_ngram", {"ngram_size": 1})], request_id=sys.argv[3]))
new = []
while True:
    session.step({handle: new}).apply(np.zeros((1, 32), np.float32))
    new = [5]
    session.rewind(handle, min(len(handle.history), 3)) if len(handle.history) > 20 else None
"""


@pytest.mark.slow  # three engines
def test_engines_that_are_killed_leave_a_file(server: RunningServer, path: Path) -> None:
    """Two of them share it, and a third one appends to it."""
    for names in (["a", "b"], ["c"]):
        engines = [
            subprocess.Popen([sys.executable, "-c", ENGINE, server.target, str(path), name], env=environment())
            for name in names
        ]
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = read_recording(path).sessions if path.exists() and path.stat().st_size else []
            if {request.began.request.request_id for one in found for request in one.requests} >= set(names):
                break
            time.sleep(0.02)
        for engine in engines:
            engine.send_signal(signal.SIGKILL)
            engine.wait(60)
    sessions = read_recording(path).sessions
    assert sorted(request.began.request.request_id for one in sessions for request in one.requests) == ["a", "b", "c"]
    for session in sessions:
        assert session.stopped is None
        (request,) = session.requests
        assert [step.index for step in request.steps] == list(range(len(request.steps)))
        assert len(request.steps) > 5


@pytest.mark.slow
def test_a_full_file_stops_the_recording_and_not_the_engine(client: Client, path: Path) -> None:
    options = RecordOptions(path, max_bytes=1 << 16, sample_every=1)
    with client.session(vocab_size=VOCAB, record=options) as session:
        handle = session.add(Request(list(range(32)), processors=[NGRAMS], request_id="long"))
        for step in range(2000):
            logits = rows(1, step)
            session.step({handle: [step % VOCAB]}).apply(logits, check=False)
            assert np.isinf(logits).all()
    session_recorded = the_session(path)
    assert session_recorded.stopped is not None
    assert session_recorded.stopped.reason == "max_bytes"
    (request,) = session_recorded.requests
    assert 0 < len(request.steps) < 2000
    assert path.stat().st_size <= 1 << 16


def test_dropped_steps_leave_whole_histories(client: Client, path: Path) -> None:
    with client.session(vocab_size=VOCAB, record=path) as session:
        handle = session.add(Request([1], processors=[NGRAMS]))
        writer = session._recorder.writer  # type: ignore[attr-defined]
        for step in range(6):
            writer._max_queue_bytes = 0 if step in (2, 3) else 1 << 20
            session.step({handle: [step]}).apply(rows(1))
    recorded, request = the_session(path), the_request(path)
    assert recorded.dropped_steps == 2
    assert [[step.index for step in part.steps] for part in request.parts] == [[0, 1], [4, 5]]
    assert ids(request.parts[1].began.request.output_ids) == [0, 1, 2, 3]


def test_a_defect_of_the_recorder_does_not_reach_the_engine(
    client: Client, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("logitport_recording.writing.items.take", lambda *_: 1 / 0)
    with client.session(vocab_size=VOCAB, record=path) as session:
        handle = session.add(Request([1], processors=[NGRAMS]))
        for _ in range(2):
            logits = rows(1)
            session.step({handle: []}).apply(logits)
            assert np.isinf(logits[0, 1])
    assert "recording has stopped, and the engine goes on" in caplog.text


def test_a_file_that_cannot_be_opened(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """An engine that requested it gets the error; with the variable alone it runs without a recording."""
    with pytest.raises(InvalidArgument, match="cannot be opened"):
        client.session(vocab_size=VOCAB, record=tmp_path / "missing" / "file")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing" / "file"))
    with client.session(vocab_size=VOCAB) as session:
        assert type(session) is PlainSession
    assert "nothing is recorded" in caplog.text


def test_the_environment_chooses_the_requests_to_record(
    client: Client, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"path": str(path), "requests": ["chat-*"]}))
    with client.session(vocab_size=VOCAB) as session:
        handles = [session.add(Request([1], request_id=name)) for name in ("chat-1", "secret", "chat-2")]
        session.step({handle: [] for handle in handles}).apply(rows(3))
    assert [request.began.request.request_id for request in the_session(path).requests] == ["chat-1", "chat-2"]
    content = gzip.decompress(path.read_bytes())
    assert b"chat-2" in content
    assert b"secret" not in content
    with client.session(vocab_size=VOCAB, record=False) as session:
        assert type(session) is Session


def test_a_session_without_steps_writes_nothing(client: Client, path: Path) -> None:
    """The front ends of engines try chains in sessions of their own."""
    with client.session(vocab_size=VOCAB, record=path) as session:
        session.add(Request([1]))
    assert path.stat().st_size == 0


def test_sessions_that_are_not_recorded_run_no_code_of_recordings(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    entered: list[str] = []

    def trace(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "record" in frame.f_code.co_filename.rpartition("logitport")[2]:
            entered.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[NGRAMS]))
        logits = rows(1)
        sys.setprofile(trace)
        try:
            for _ in range(3):
                pending = session.step({handle: []})
                pending.apply(logits)
        finally:
            sys.setprofile(None)
        assert type(session) is Session
        assert type(pending) is PendingStep
    assert not entered


def test_hooks_record_by_the_environment(client: Client, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from logitport.integrations.transformers import RemoteLogitsProcessor

    monkeypatch.setenv(VARIABLE, str(path))
    hook = RemoteLogitsProcessor([NGRAMS], client=client)
    for history in ([1, 2], [1, 2, 3]):
        hook(torch.tensor([history]), torch.from_numpy(rows(1)))
    hook.close()
    request = the_request(path)
    assert ids(request.began.request.prompt_ids) == [1, 2]
    assert denied(request) == [[[1, 2]], [[1, 2, 3]]]
    assert [step.rows[0].HasField("before") for step in request.steps] == [True, False]
