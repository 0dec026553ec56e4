"""Frames that are repeated, out of order, of another session, or sent to a session that has ended."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from logitport import Request
from tests.attacks.conftest import columns, int32
from tests.waiting import wait_until

VOCAB = 1000
ZERO = bytes(4)
TRANSPORTS = pytest.mark.parametrize("transport", ["grpc", "local"])


def step(prompt: tuple[int, ...], *new: int) -> dict[str, bytes]:
    return columns(prompt, new_token_counts=int32(len(new)), new_token_ids=int32(*new))


def denied(reply: Any) -> list[int]:
    assert reply.WhichOneof("frame") == "edits", reply
    return sorted(struct.unpack(f"<{len(reply.edits.edits.ids) // 4}i", reply.edits.edits.ids))


def open_session(raw_engine: Any, transport: str, *prompt: int) -> Any:
    """Open a session with one request."""
    engine = raw_engine(vocab_size=VOCAB)
    if transport == "local":
        engine.attach()
    message = Request(prompt, processors=[("no_repeat_ngram", {"ngram_size": 1})]).to_proto()
    assert not engine.send(add={"requests": [{"request": message}]}).added.failures
    return engine


@TRANSPORTS
def test_a_repeated_step_does_not_advance_the_history(raw_engine: Any, transport: str) -> None:
    engine = open_session(raw_engine, transport, 1)
    first = engine.send(step=step((1,), 2))
    for _ in range(3):
        assert engine.send(seq=first.seq, step=step((1,), 2)) == first
    # The content of a frame with the last number is ignored.
    assert engine.send(seq=first.seq, remove={"slots": ZERO, "generations": ZERO}) == first
    assert denied(engine.send(step=step((1, 2), 3))) == [1, 2, 3]


@TRANSPORTS
@pytest.mark.parametrize("seq", [0, 1, 2, 4, 5, 2**32 + 3, 2**63, 2**64 - 1])
def test_numbers_out_of_order(raw_engine: Any, code: Any, transport: str, seq: int) -> None:
    engine = open_session(raw_engine, transport, 1)
    assert denied(engine.send(step=step((1,), 2))) == [1, 2]
    last = engine.seq
    if seq != last + 1:
        assert code(engine.send(seq=seq, step=step((1, 2), 9)).error) == "INVALID_ARGUMENT"
    assert denied(engine.send(seq=last + 1, step=step((1, 2), 3))) == [1, 2, 3]


@TRANSPORTS
def test_frames_of_another_session(raw_engine: Any, code: Any, transport: str) -> None:
    victim, attacker = open_session(raw_engine, transport, 1, 2), open_session(raw_engine, transport, 7)
    recorded = [step((1, 2), 3), step((1, 2, 3), 4)]
    victim.send(step=recorded[0])
    for frame in recorded:
        (failure,) = attacker.send(step=frame).edits.failures
        assert code(failure.error) == "NEED_SYNC"
    assert denied(victim.send(step=recorded[1])) == [1, 2, 3, 4]


@TRANSPORTS
def test_a_session_cannot_be_opened_twice(raw_engine: Any, code: Any, transport: str) -> None:
    engine = open_session(raw_engine, transport, 1)
    assert code(engine.send(open={"vocab_size": 2, "datatype": "FP32"}).error) == "INVALID_ARGUMENT"
    assert denied(engine.send(step=step((1,), 60))) == [1, 60]


def test_another_stream_has_no_access_to_the_requests(raw_engine: Any, code: Any) -> None:
    victim, attacker = open_session(raw_engine, "local", 1, 2), raw_engine(vocab_size=VOCAB)
    (failure,) = attacker.send(step=step((1, 2), 3)).edits.failures
    assert code(failure.error) == "NOT_FOUND"
    attacker.send(remove={"slots": ZERO, "generations": ZERO})
    assert denied(victim.send(step=step((1, 2), 3))) == [1, 2, 3]


def test_grpc_frames_are_refused_after_attaching_the_local_transport(raw_engine: Any, code: Any) -> None:
    engine = open_session(raw_engine, "local", 1)
    (local, engine.local), last = (engine.local, None), engine.seq
    assert code(engine.send(step=step((1,), 9)).error) == "INVALID_ARGUMENT"
    assert code(engine.send(open_region={"size_bytes": 8}).error) == "INVALID_ARGUMENT"
    engine.local, engine.seq = local, last  # the numbers of refused frames do not count
    assert denied(engine.send(step=step((1,), 2))) == [1, 2]


def test_a_local_transport_ends_with_its_session(raw_engine: Any) -> None:
    engine = open_session(raw_engine, "local", 1)
    engine._replies.cancel()
    with pytest.raises((ConnectionError, struct.error)):  # in-flight frames may still get replies
        wait_until(lambda: engine.send(step=step((1,))) is None)


def test_a_token_ends_with_its_session(raw_engine: Any, local_transport_socket: Any) -> None:
    engine = raw_engine()
    ticket = engine.opened.local_transport
    engine.close()
    wait_until(lambda: not local_transport_socket(ticket).is_accepted())


def test_a_stream_that_failed_to_open_refuses_all_frames(attacked: Any, raw_engine: Any, code: Any) -> None:
    engine = raw_engine(vocab_size=0)
    for frame in (
        {"step": step((1,))},
        {"remove": {}},
        {"add": {}},
        {"logits": {}},
        {"open_region": {"size_bytes": 8}},
    ):
        assert code(engine.send(**frame).error) == "SESSION_CLOSED"
