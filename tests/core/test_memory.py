"""Objects of the compiled core without ids, edits or frames, of which many functions must not throw; arguments that run
code while the core reads them; states with histories that they do not follow.

A plain build may pass by luck: `make sanitize` checks each index, and each access to memory that is empty, was freed or
is another's.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport.core import compiled
from logitport.core.history import History, extend_crc
from logitport.errors import InvalidArgument, LogitportError
from logitport_proto import processing_pb2
from tests.waiting import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable


core = compiled.core
pytestmark = pytest.mark.skipif(core is None, reason=f"the compiled core does not run: {compiled.REASON}")

VOCAB = 100
NO_IDS = np.empty(0, np.int32)
_LENGTH = struct.Struct("<I")

STATES: dict[str, Callable[[Any], Any]] = {
    "TokenList": lambda _: core.TokenList(NO_IDS),
    "BiasList": lambda _: core.BiasList(NO_IDS, []),
    "NGramIndex": lambda history: core.NGramIndex(history, 2, 9, [], VOCAB),
    "NGramIndex of single ids": lambda history: core.NGramIndex(history, 1, 0, [], VOCAB),
    "ThinkingBlocks": lambda history: core.ThinkingBlocks(history, 0, [1], [2], None),
    "LoopBreaker": lambda history: core.LoopBreaker(history, 2, 9, 4, 2, 1, [], [], [], None),
    "LoopBreaker of blocks": lambda history: core.LoopBreaker(history, 2, 9, 4, 2, 3, [], [1], [2], None),
    "BannedSequences": lambda _: core.BannedSequences([], False),
    "Penalty": lambda history: core.Penalty(history, 0.5, True),
    "PhasedState": lambda history: core.PhasedState(
        core.Penalty(history, 0.5, True), history, 1, [([3], 1, -1, False), ([4], 0, 1, False)], 0
    ),
}


def new_batch(max_bytes: int = 1 << 20) -> Any:
    return core.Batch(VOCAB, 4, 1 << 20, 1 << 20, max_bytes, [], [])


def step(seq: int, *, slots: int = 1, base: tuple[int, ...] = (), new: tuple[int, ...] = ()) -> bytes:
    def column(*values: int) -> bytes:
        return np.array(values * slots, "<i4").tobytes()

    columns = processing_pb2.Step(
        slots=np.arange(slots, dtype="<i4").tobytes(),
        generations=column(0),
        base_lengths=column(len(base)),
        history_crcs=np.array([extend_crc(0, base)] * slots, "<u4").tobytes(),
        new_token_counts=column(len(new)),
        new_token_ids=column(*new),
    )
    return processing_pb2.SessionRequest(seq=seq, step=columns).SerializeToString()


def computed(batch: Any, data: bytes, seq: int) -> Any:
    reply = batch.step(data, seq, 0, False, core.Transport.GRPC)
    assert reply is not None
    return processing_pb2.SessionResponse.FromString(reply).edits


@pytest.mark.parametrize("name", STATES)
def test_states_of_an_empty_history(name: str) -> None:
    history = core.History(NO_IDS, NO_IDS)
    state = STATES[name](history)
    assert state.nbytes >= 0
    assert isinstance(state.advances, bool)
    batch = new_batch()
    batch.put(0, 0, history, [(state, "key", "key")])
    for seq, (base, new) in enumerate(
        [((), ()), ((), (3, 3, 3)), ((3, 3, 3), (4,)), ((), ()), ((), (5,)), ((), ())], 1
    ):
        assert computed(batch, step(seq, base=base, new=new), seq).applied[0].rows == 1
        assert state.nbytes >= 0
    assert history.length == 0


def test_a_batch_without_requests() -> None:
    batch = new_batch()
    assert batch.activity() == (0, 0.0)
    for seq in (1, 2):
        edits = computed(batch, step(seq, slots=0), seq)
        assert not edits.applied
        assert not edits.edits.ids
    batch.remove(5)
    assert batch.step_partly(step(3, slots=0)) is not None
    assert [len(counts) for counts in batch.take_counts()] == [2, 0, 0]


@pytest.mark.parametrize(
    "received", [b"", b"\0", b"\0\0\0", b"\1\0\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff" * 100_000]
)
def test_a_socket_without_a_whole_step(received: bytes) -> None:
    """Nothing, a part of a frame, an empty frame and one over all limits are left as they are."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.shutdown(socket.SHUT_WR)
        batch = new_batch()
        for _ in range(2):
            served = batch.serve(ours.fileno(), received, 1 << 20, 0, False, core.Transport.LOCAL, SECONDS)
            assert served == (False, received, 0, b"", 0)


def test_more_was_received_than_a_socket_has_memory_for() -> None:
    batch, reference = new_batch(), new_batch()
    frames = [step(seq, slots=0) for seq in range(1, 9001)]
    received = b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)
    assert len(received) > 1 << 16
    ours, theirs = socket.socketpair()
    with ours, theirs:
        rest = received + _LENGTH.pack(1 << 17) + bytes(1 << 16)
        reader = threading.Thread(target=_discard, args=(theirs,))
        reader.start()
        served = batch.serve(ours.fileno(), rest, 1 << 20, 0, False, core.Transport.LOCAL, SECONDS)
        ours.shutdown(socket.SHUT_RDWR)
        reader.join(SECONDS)
    reply = [reference.step(frame, seq, 0, False, core.Transport.LOCAL) for seq, frame in enumerate(frames, 1)]
    assert served == (False, rest[len(received) :], len(frames), reply[-1], 0)


def _discard(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def test_a_receiver_without_a_frame() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = core.EarlyReceiver(ours.fileno(), 1 << 20)
        reader = core.ReplyReader(VOCAB, core.Datatype.FP32)
        assert receiver.claim() == receiver.claim() == b""
        for part in (b"", b"\5", b"\5\0\0\0", b"\5\0\0\0ab"):
            receiver.leave(reader, 1, 1)
            receiver.leave(None, 0, 0)
            theirs.sendall(part)
            data = receiver.claim()
            if len(data) < len(part):
                data += ours.recv(len(part) - len(data), socket.MSG_WAITALL)
            assert data == part
        ours.shutdown(socket.SHUT_RDWR)
        threads = [threading.Thread(target=receiver.join) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        receiver.join()
        receiver.leave(reader, 2, 1)
        assert receiver.claim() == b""


class ClearsList:
    """An integer that empties the list that it is in."""

    def __init__(self, held: list[Any], value: int) -> None:
        self.held, self.value = held, value

    def __index__(self) -> int:
        self.held.clear()
        return self.value

    __int__ = __index__


def clearing(count: int = 50) -> list[Any]:
    held: list[Any] = []
    held.extend(ClearsList(held, 7) for _ in range(count))
    return held


@pytest.mark.parametrize(
    "read",
    [
        lambda ids: History().extend(ids),
        lambda ids: core.NGramIndex(History(), 2, 9, ids, 10),
        lambda ids: core.ThinkingBlocks(History(), 3, ids, [1], None),
        lambda ids: core.ThinkingBlocks(History(), 3, [1], ids, None),
        lambda ids: core.LoopBreaker(History(), 2, 9, 4, 2, 3, ids, [1], [2], None),
        lambda ids: core.LoopBreaker(History(), 2, 9, 4, 2, 3, [], ids, [2], None),
        lambda ids: core.LoopBreaker(History(), 2, 9, 4, 2, 3, [], [1], ids, None),
        lambda ids: core.BannedSequences([ids], False),
    ],
)
def test_a_list_may_change_while_it_is_read(read: Callable[[list[Any]], object]) -> None:
    read(clearing())


def test_a_nested_list_may_change_while_it_is_read() -> None:
    outer: list[Any] = []
    outer.extend([ClearsList(outer, 7)] for _ in range(50))
    (_, _, _, ids, _) = core.BannedSequences(outer, False).edit(History(), 10)
    assert ids.tolist() == [7]


def test_the_requests_of_a_step_may_change_while_they_are_read() -> None:
    class Request:
        generation, history = 0, History()

        @property
        def slot(self) -> int:
            step.clear()
            return 0

    step: dict[Any, Any] = {}
    for _ in range(9):
        step[Request()] = [1]
    assert core.step_frame_writer(step, {0: None}, 10) is None


@pytest.mark.parametrize("place", [(1, "a", "b"), (None, "a", "b"), ("a", "b"), 5, (core and core.TokenList, "a", "b")])
def test_a_place_of_a_chain_must_be_whole(place: Any) -> None:
    batch = core.Batch(10, 1, 100, 100, 1000, [], [])
    with pytest.raises(InvalidArgument, match="a place of the chain"):
        batch.put(0, 0, History(), [place])
    state = core.TokenList(np.array([1], np.int32))
    with pytest.raises(InvalidArgument, match="a place of the chain"):
        batch.put(0, 0, History(), [(state, 5, "b")])
    with pytest.raises(UnicodeEncodeError):
        batch.put(0, 0, History(), [(state, "\udcff", "b")])


def test_thinking_blocks_of_another_history() -> None:
    blocks = core.ThinkingBlocks(History([1, 2, 3]), 3, [1], [2], None)
    with pytest.raises(LogitportError):
        blocks.advance(History(), 1)


@pytest.mark.parametrize("seed", range(10))
def test_states_with_histories_that_they_do_not_follow(seed: int) -> None:
    """A processor may also have changed the ids of a history, which it sees as an array."""
    draw = random.Random(seed)

    def ids(least: int, most: int) -> list[int]:
        return [draw.randrange(4) for _ in range(draw.randint(least, most))]

    def tags() -> list[tuple[list[int], int, int, bool]]:
        return [(ids(1, 3), draw.randrange(4), draw.randint(-1, 3), draw.random() < 0.5) for _ in range(3)]

    histories = [History(ids(0, 40), ids(0, 150)) for _ in range(3)]
    kinds: list[Callable[[History], Any]] = [
        lambda history: core.NGramIndex(history, draw.randint(1, 4), draw.randrange(100), ids(0, 1), 4),
        lambda history: core.ThinkingBlocks(history, draw.randrange(4), ids(1, 3), ids(1, 3), draw.choice([None, 1])),
        lambda history: core.LoopBreaker(
            history, 2, draw.choice([1, 5, 99]), draw.randrange(9), 2, draw.randrange(3), ids(0, 2), [], [], None
        ),
        lambda history: core.LoopBreaker(history, 2, 9, draw.randrange(9), 2, 3, [], ids(1, 2), ids(1, 2), None),
        lambda history: core.ThinkingBlocks(history, 9, ids(1, 3), ids(1, 3), 1, ids(0, 3), draw.randrange(9), 2),
        lambda history: core.PhasedState(kinds[0](history), history, 0, tags(), draw.randrange(4), 2, 3),
        lambda history: core.PhasedState(core.Penalty(history, 1.0, True), history, 1, tags(), 0),
        lambda history: core.PhasedState(kinds[2](history), history, 1, tags(), draw.randrange(4)),
        lambda history: core.Penalty(history, 1.0, draw.random() < 0.5),
        lambda _: core.BannedSequences([ids(1, 3) for _ in range(5)], draw.random() < 0.5),
    ]
    states = [kind(draw.choice(histories)) for kind in kinds]
    for _ in range(400):
        history, state = draw.choice(histories), draw.choice(states)
        changes: list[Callable[[], object]] = [
            lambda: history.extend(ids(0, 9)),  # noqa: B023 - called at once
            lambda: history.rewind(draw.randint(history.prompt_length, history.length)),  # noqa: B023
            lambda: history.token_ids.__setitem__(slice(draw.randint(0, 99), None, 7), draw.randint(-3, 5)),  # noqa: B023
            lambda: state.advance(history, draw.randrange(4)),  # noqa: B023
            lambda: state.rewind(history),  # noqa: B023
            lambda: state.edit(history, draw.choice([4, 3, 1])),  # noqa: B023
        ]
        with suppress(LogitportError):  # it may notice
            draw.choice(changes)()
