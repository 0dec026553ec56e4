"""Sessions of liblogitport when something fails: arguments, admissions, histories, connections, servers."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client
from logitport_proto import common_pb2, processing_pb2
from logitport_server.access.token_file import Grant
from tests.conftest import free_address
from tests.core.library.c_session import (
    INVALID_ARGUMENT,
    LIMIT_EXCEEDED,
    NOT_FOUND,
    NOT_PERMITTED,
    STATE_LOST,
    UNAVAILABLE,
    CError,
    CSession,
)
from tests.core.library.lying_server import LyingServer, lying_server
from tests.toy_processors import HalveInPlace
from tests.waiting import resume, stop

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB = 40
BAN: list[tuple[str, dict[str, Any]]] = [("disallowed_tokens", {"token_ids": [3]})]
REPEATS: list[tuple[str, dict[str, Any]]] = [("no_repeat_ngram", {"ngram_size": 1})]


def denied(session: CSession, new_ids: dict[int, list[int]]) -> list[list[int]]:
    """Make a step without failures; returns the ids that each row denies."""
    logits = np.zeros((session.begin(new_ids), VOCAB), np.float32)
    result = session.apply(logits)
    assert result.failures == {}
    return [np.flatnonzero(np.isneginf(row)).tolist() for row in logits]


@pytest.fixture(params=["embedded", "server"])
def session(request: pytest.FixtureRequest, library: ctypes.CDLL, server: RunningServer) -> Iterator[CSession]:
    target = None if request.param == "embedded" else server.target
    with CSession(library, target, vocab_size=VOCAB, max_draft_tokens=2, max_requests=3) as opened:
        yield opened


def test_a_refused_request_leaves_the_others(session: CSession) -> None:
    one, refused, other = session.add_all(
        {"prompt": [1], "processors": BAN},
        {"prompt": [1], "processors": [("no_such_thing", {})]},
        {"prompt": [2], "processors": REPEATS},
    )
    assert isinstance(refused, CError)
    assert refused.code == NOT_FOUND
    assert "no_such_thing" in refused.message
    assert isinstance(one, int)
    assert isinstance(other, int)
    assert denied(session, {one: [], other: []}) == [[3], [2]]
    with pytest.raises(CError, match=r"prompt_token_ids\[1\] is 40: token ids must lie in \[0, 40\)"):
        session.add([1, VOCAB])
    session.add([1])
    with pytest.raises(CError, match="max_requests") as full:
        session.add([1])
    assert full.value.code == LIMIT_EXCEEDED


def test_a_handle_is_of_one_request(session: CSession) -> None:
    handle = session.add([1], BAN)
    session.remove(handle)
    other = session.add([1], REPEATS)
    assert handle != other
    for call in (
        lambda: session.remove(handle),
        lambda: session.begin({handle: []}),
        lambda: session.rewind(handle, 1),
        lambda: session.length(handle),
        lambda: session.remove(12345 << 32 | 7),
    ):
        with pytest.raises(CError, match="is not of this session") as unknown:
            call()
        assert unknown.value.code == NOT_FOUND
    with pytest.raises(CError, match="occurs twice"):
        session.remove(other, other)
    assert denied(session, {other: []}) == [[1]]


def test_an_id_outside_the_vocabulary_fails_its_request_alone(session: CSession) -> None:
    good, bad = session.add([1], REPEATS), session.add([1], BAN)
    logits = np.zeros((session.begin({good: [], bad: [VOCAB]}), VOCAB), np.float32)
    result = session.apply(logits)
    assert result.failures[bad].code == INVALID_ARGUMENT
    assert result.failures[bad].message == "new_ids[0] is 40: token ids must lie in [0, 40)"
    assert np.flatnonzero(np.isneginf(logits[0])).tolist() == [1]
    session.begin({good: [2], bad: []}, drafts={good: [5]})
    assert list(session.apply(np.zeros((3, VOCAB), np.float32)).failures) == [bad]  # and in later steps
    session.remove(bad)
    assert denied(session, {good: [5]}) == [[1, 2, 5]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda one, _: one.begin({}, rows=[]), None),
        (lambda one, handle: one.begin({handle: []}, rows=[]), "no rows"),
        (lambda one, handle: one.begin({handle: []}, rows=[(handle, 1)]), "draft offset 1"),
        (lambda one, handle: one.begin({handle: []}, drafts={handle: [1, 2, 3]}), "max_draft_tokens 2"),
        (lambda one, handle: one.begin({handle: []}, drafts={handle: [1, 2]}, parents={handle: [0, -1]}), "parent"),
        (lambda one, handle: one.rewind(handle, 0), "cannot rewind"),
        (lambda one, handle: one.rewind(handle, 9), "cannot rewind"),
        (lambda one, _: one.apply(np.zeros((1, VOCAB), np.float32)), "logitport_begin"),
    ],
)
def test_wrong_arguments_change_nothing(session: CSession, make: Callable[..., object], message: str | None) -> None:
    handle = session.add([1], REPEATS)
    if message is None:
        make(session, handle)
    else:
        with pytest.raises(CError, match=message) as wrong:
            make(session, handle)
        assert wrong.value.code == INVALID_ARGUMENT
    assert denied(session, {handle: [2]}) == [[1, 2]]


def test_logits_of_another_shape_may_be_corrected(session: CSession) -> None:
    handle = session.add([1], BAN)
    session.begin({handle: []})
    with pytest.raises(CError, match="have 2 rows; the step has 1"):
        session.apply(np.zeros((2, VOCAB), np.float32))
    with pytest.raises(CError, match="row_stride is 156"):
        session.apply(np.zeros((1, VOCAB - 1), np.float32))
    wide = np.zeros((2, 64), np.float32)[:1]  # rows further apart than their width
    assert session.apply(wide).failures == {}
    assert np.flatnonzero(np.isneginf(wide[0])).tolist() == [3]
    with pytest.raises(CError, match="no step was begun"):
        session.apply(wide)


def test_a_step_that_is_not_applied_is_dropped(session: CSession) -> None:
    handle = session.add([1], REPEATS)
    session.begin({handle: []})
    session.begin({handle: [2]})
    other = session.add([4], REPEATS)  # between the two halves of a step
    logits = np.zeros((1, VOCAB), np.float32)
    session.apply(logits)
    assert np.flatnonzero(np.isneginf(logits[0])).tolist() == [1, 2]
    assert denied(session, {other: [], handle: []}) == [[4], [1, 2]]


def test_rows_with_no_id_left_are_listed(session: CSession) -> None:
    handle = session.add([], [("disallowed_tokens", {"token_ids": list(range(VOCAB))})])
    session.begin({handle: []})
    assert session.apply(np.zeros((1, VOCAB), np.float32)).all_denied_rows == (0,)


def test_a_cancelled_session_ends(session: CSession) -> None:
    handle = session.add([1], BAN)
    session.cancel()
    session.begin({handle: []})
    with pytest.raises(CError, match="cancelled") as ended:
        session.apply(np.zeros((1, VOCAB), np.float32))
    assert ended.value.code == UNAVAILABLE


def test_events_are_reported(session: CSession) -> None:
    words = [("bad_words", {"bad_words_ids": [[1, 2]]})]
    handle = session.add([5, 1], words)
    session.begin({handle: []})
    (event,) = session.apply(np.zeros((1, VOCAB), np.float32)).events
    assert event[:4] == (handle, "bad_words", 0, "ids_denied")


# --- Servers.


def test_a_caller_without_a_token_is_refused(library: ctypes.CDLL, start_server: Callable[..., Any]) -> None:
    running = start_server(grants=[Grant(name="engine", scopes={"apply"}, sha256=sha256(b"secret").hexdigest())])
    with pytest.raises(CError) as refused:
        CSession(library, running.target, vocab_size=VOCAB)
    assert refused.value.code == 4
    with CSession(library, running.target, vocab_size=VOCAB, token="secret") as opened:
        assert denied(opened, {opened.add([1], BAN): []}) == [[3]]


def test_requests_continue_on_a_server_that_was_killed(library: ctypes.CDLL, start_server: Callable[..., Any]) -> None:
    target = free_address()
    running = start_server("--listen", target)
    with CSession(library, target, vocab_size=VOCAB, max_draft_tokens=3, reconnect_seconds=60) as opened:
        one, other = opened.add([1], REPEATS), opened.add([2], REPEATS)
        reader = opened.add([5], [("min_p", {"min_p": 0.1})])
        assert denied(opened, {one: [], other: [7]}) == [[1], [2, 7]]
        opened.begin({reader: []})
        opened.apply(np.zeros((1, VOCAB), np.float32))
        running.process.kill()
        running.process.wait()
        threading.Timer(1.0, lambda: start_server("--listen", target)).start()
        assert denied(opened, {one: [4], other: []}) == [[1, 4], [2, 7]]
        assert opened.stats == (1, 0, 3)
        buffer = opened.logits_buffer(2)
        opened.begin({one: [], other: [8]})
        assert opened.apply(buffer).failures == {}


def test_a_server_that_stops_while_a_step_is_computed(library: ctypes.CDLL, start_server: Callable[..., Any]) -> None:
    running = start_server()
    with CSession(library, running.target, vocab_size=VOCAB, timeout_seconds=1, reconnect_seconds=1) as opened:
        handle = opened.add([1], REPEATS)
        stop(running.process)
        try:
            opened.begin({handle: [2]})
            began = time.monotonic()
            with pytest.raises(CError) as lost:
                opened.apply(np.zeros((1, VOCAB), np.float32))
            assert lost.value.code == UNAVAILABLE
            assert time.monotonic() - began < 10
        finally:
            resume(running.process)
        logits = np.zeros((1, VOCAB), np.float32)
        for _ in range(20):  # the server works off its backlog first
            with suppress(CError):
                opened.apply(logits)
                break
        assert np.flatnonzero(np.isneginf(logits[0])).tolist() == [1, 2]


def test_a_waiting_call_is_cancelled_on_another_thread(library: ctypes.CDLL, start_server: Callable[..., Any]) -> None:
    running = start_server()
    with CSession(library, running.target, vocab_size=VOCAB) as opened:
        handle = opened.add([1], REPEATS)
        stop(running.process)
        try:
            opened.begin({handle: [2]})
            threading.Timer(0.3, opened.cancel).start()
            began = time.monotonic()
            with pytest.raises(CError, match="cancelled"):
                opened.apply(np.zeros((1, VOCAB), np.float32))
            assert time.monotonic() - began < 20
        finally:
            resume(running.process)


# --- Servers that lie.


@pytest.fixture
def lying() -> Iterator[LyingServer]:
    with lying_server() as running:
        yield running


def _refusing_histories(replies: list[bytes], count: int) -> Callable[[str, bytes], bytes]:
    """Replace the next `count` replies to steps by NEED_SYNC for the request of slot 0."""
    left = [count]

    def lie(kind: str, reply: bytes) -> bytes:
        if kind != "step" or not left[0]:
            return reply
        left[0] -= 1
        replies.append(reply)
        message = processing_pb2.SessionResponse.FromString(reply)
        message.edits.failures.add(slot=0, error=common_pb2.Error(code=common_pb2.ERROR_CODE_NEED_SYNC, message="no"))
        return message.SerializeToString()

    return lie


def test_histories_are_sent_again(library: ctypes.CDLL, lying: LyingServer) -> None:
    replies: list[bytes] = []
    with CSession(library, lying.target, vocab_size=VOCAB, max_draft_tokens=2) as opened:
        one, other = opened.add([1], REPEATS), opened.add([2], REPEATS)
        lying.lie = _refusing_histories(replies, 1)
        assert denied(opened, {one: [3], other: [4]}) == [[1, 3], [2, 4]]
        assert opened.stats == (0, 1, 2)
        assert lying.frames == ["add", "add", "step", "add", "step"]
        opened.rewind(one, 1)
        opened.remove(other)
        assert denied(opened, {one: [5]}) == [[1, 5]]
        assert lying.frames[5:] == ["remove", "step"]


def test_a_lost_connection_is_replaced_during_each_call(library: ctypes.CDLL, lying: LyingServer) -> None:
    drop: list[str] = []

    def lie(kind: str, reply: bytes) -> bytes | None:
        if kind in drop:
            drop.remove(kind)
            return None
        return reply

    lying.lie = lie
    with CSession(library, lying.target, vocab_size=VOCAB, reconnect_seconds=60) as opened:
        drop.append("add")
        one = opened.add([1], REPEATS)
        assert opened.stats == (1, 0, 1)
        drop.append("step")
        assert denied(opened, {one: [2]}) == [[1, 2]]
        drop.append("remove")
        other = opened.add([3], REPEATS)
        opened.remove(one)
        assert denied(opened, {other: []}) == [[3]]
        assert opened.stats == (3, 0, 1)
        drop += ["step", "add"]  # also while it is replaced
        assert denied(opened, {other: [6]}) == [[3, 6]]
        assert opened.stats[0] >= 4


def test_without_reconnects_a_lost_connection_is_an_error(library: ctypes.CDLL, lying: LyingServer) -> None:
    with CSession(library, lying.target, vocab_size=VOCAB, reconnect_seconds=-1) as opened:
        handle = opened.add([1], REPEATS)
        lying.lie = lambda _, __: None
        opened.begin({handle: []})
        for _ in range(2):
            with pytest.raises(CError) as lost:
                opened.apply(np.zeros((1, VOCAB), np.float32))
            assert lost.value.code == UNAVAILABLE


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda opened: opened.opened.ClearField("local_transport"), UNAVAILABLE),
        (lambda opened: setattr(opened.opened.local_transport, "socket_path", "/run/docker.sock"), NOT_PERMITTED),
        (lambda opened: setattr(opened.opened.local_transport, "access_token", b"short"), NOT_PERMITTED),
        (lambda opened: setattr(opened, "seq", 9), 1),
        (lambda opened: opened.edits.SetInParent(), 1),
        (lambda opened: setattr(opened.error, "code", 3), LIMIT_EXCEEDED),
        (lambda opened: setattr(opened.opened, "max_requests", -1), 1),
    ],
)
def test_a_server_that_cannot_be_trusted_is_not_used(
    change: Callable[[Any], object], code: int, library: ctypes.CDLL, lying: LyingServer
) -> None:
    lying.change_opening = change
    with pytest.raises(CError) as refused:
        CSession(library, lying.target, vocab_size=VOCAB, timeout_seconds=5)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "change",
    [
        lambda edits: setattr(edits.edits, "rows", np.array([5], "<i4").tobytes()),
        lambda edits: setattr(edits.edits, "ids", np.array([VOCAB], "<i4").tobytes()),
        lambda edits: setattr(edits.edits, "ids", np.array([-1], "<i4").tobytes()),
        lambda edits: setattr(edits.edits, "offsets", np.array([0, 1 << 30], "<i4").tobytes()),
        lambda edits: setattr(edits.edits, "kinds", b"\7"),
        lambda edits: setattr(edits, "all_denied_rows", np.array([1], "<i4").tobytes()),
        lambda edits: setattr(edits, "logits_rows", np.array([0, 0], "<i4").tobytes()),
        lambda edits: edits.later_edits.add(),
    ],
)
def test_edits_that_do_not_fit_are_refused(
    change: Callable[[Any], object], library: ctypes.CDLL, lying: LyingServer
) -> None:
    def lie(kind: str, reply: bytes) -> bytes:
        message = processing_pb2.SessionResponse.FromString(reply)
        if kind == "step":
            change(message.edits)
        return message.SerializeToString()

    with CSession(library, lying.target, vocab_size=VOCAB) as opened:
        handle = opened.add([1], BAN)
        lying.lie = lie
        opened.begin({handle: []})
        time.sleep(0.05)  # the thread reads the reply
        logits = np.zeros((1, VOCAB), np.float32)
        for _ in range(2):
            with pytest.raises(CError) as wrong:
                opened.apply(logits)
            assert wrong.value.code == 1
        assert not logits.any()
        lying.lie = lambda _, reply: reply
        assert denied(opened, {handle: []}) == [[3]]


def test_edits_in_another_order_are_applied(library: ctypes.CDLL, lying: LyingServer) -> None:
    def lie(kind: str, reply: bytes) -> bytes:
        message = processing_pb2.SessionResponse.FromString(reply)
        if kind == "step":
            edits = message.edits.edits
            edits.rows, edits.kinds = np.array([1, 0], "<i4").tobytes(), b"\1\1"
            edits.offsets, edits.ids = np.array([0, 1, 3], "<i4").tobytes(), np.array([9, 7, 8], "<i4").tobytes()
        return message.SerializeToString()

    lying.lie = lie
    with CSession(library, lying.target, vocab_size=VOCAB) as opened:
        assert denied(opened, {opened.add([1], BAN): [], opened.add([1], BAN): []}) == [[7, 8], [9]]


def test_a_state_that_saw_logits_is_lost_with_its_server(
    library: ctypes.CDLL, start_server: Callable[..., Any]
) -> None:
    target, shipped = free_address(), ("--enable-custom-logit-processor", "--isolation", "none")
    running = start_server("--listen", target, *shipped)
    with CSession(library, target, vocab_size=VOCAB, reconnect_seconds=60) as opened:
        with Client(target) as client:
            payload = client.register(HalveInPlace).digest
        reader, other = opened.add([5], [(payload, {})]), opened.add([1], BAN)
        logits = np.ones((2, VOCAB), np.float32)
        opened.begin({reader: [], other: []})
        assert opened.apply(logits).failures == {}
        assert (logits[0] == 0.5).all()
        running.process.kill()
        running.process.wait()
        start_server("--listen", target, *shipped)
        opened.begin({reader: [1], other: []})
        (failed,) = opened.apply(np.ones((2, VOCAB), np.float32)).failures.items()
        assert (failed[0], failed[1].code) == (reader, STATE_LOST)
        opened.remove(reader)
        assert denied(opened, {other: []}) == [[3]]


def test_mutated_replies_are_errors_or_steps(library: ctypes.CDLL, lying: LyingServer) -> None:
    rng = random.Random(5)

    def lie(_: str, reply: bytes) -> bytes | None:
        if rng.random() < 0.5:
            return reply
        data = bytearray(reply)
        for _ in range(rng.randrange(1, 5)):
            place = rng.randrange(len(data))
            choice = rng.randrange(3)
            if choice == 0:
                data[place] = rng.randrange(256)
            elif choice == 1:
                del data[place : place + rng.randrange(1, 4)]
            else:
                data[place:place] = rng.randbytes(rng.randrange(1, 4))
            if not data:
                return None
        return bytes(data)

    lying.lie = lie
    for _ in range(30):
        with (
            suppress(CError),
            CSession(
                library, lying.target, vocab_size=VOCAB, max_draft_tokens=2, timeout_seconds=2, reconnect_seconds=0.05
            ) as opened,
        ):
            added = opened.add_all(*[{"prompt": [1], "processors": BAN + REPEATS}] * 3)
            handles = [one for one in added if isinstance(one, int)]
            for _ in range(5):
                count = opened.begin({one: [rng.randrange(VOCAB)] for one in handles})
                opened.apply(np.zeros((count, VOCAB), np.float32))
    lying.lie = lambda _, reply: reply
    with CSession(library, lying.target, vocab_size=VOCAB) as opened:
        assert denied(opened, {opened.add([1], BAN): []}) == [[3]]
