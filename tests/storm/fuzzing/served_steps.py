"""The target of steps that the compiled core receives and answers itself, with replies below and over 1 MiB."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from logitport.core.compiled import core
from logitport.core.history import extend_crc
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 1 << 30  # a list of ids becomes a bitmask only if it is longer than that
# Requests by slot: the number of ids that each row denies. The ids of the first one take 1.2 MB.
COUNTS = (300_000, 10, 70_000)
_MAX_COMMANDS = 40
_MAX_BYTES = 1 << 16
_SECONDS = 60.0
_LENGTH = struct.Struct("<I")
_Message = processing_pb2.SessionRequest


def served_steps(data: bytes) -> None:
    """The replies are those of `Batch.step`, and other frames are left to Python with the reply before them.

    Each byte is a command; see `_Engine`.
    """
    if core is None:
        return
    frames = list(_Engine().frames(data[:_MAX_COMMANDS]))
    server, engine = socket.socketpair()
    with server, engine:
        replies: list[bytes] = []
        sender = threading.Thread(target=_send, args=(engine, frames))
        receiver = threading.Thread(target=_receive, args=(engine, replies))
        sender.start()
        receiver.start()
        expected = _serve(server, frames)
        server.close()
        sender.join(_SECONDS)
        receiver.join(_SECONDS)
        assert not sender.is_alive()
        assert not receiver.is_alive()
        assert replies == expected


class _Engine:
    """Makes the frames of an engine by commands.

    The lower three bits of a command choose the frame: 0 to 2 a step, 3 a step with another history, 4 a removal, 5 an
    addition, 6 bytes that the next commands give, 7 the frame before. The upper five bits choose its requests.
    """

    def __init__(self) -> None:
        self._histories = {slot: [1, 2] for slot in range(len(COUNTS))}
        self._seq = 0
        self._last = b""

    def frames(self, commands: bytes) -> Iterator[bytes]:
        rest = iter(commands)
        for command in rest:
            kind, choice = command % 8, command // 8
            if kind == 7:
                yield self._last
                continue
            self._seq += 1
            if kind == 6:
                self._last = bytes(value for _, value in zip(range(choice), rest, strict=False))
            elif kind > 3:
                self._last = self._change(kind == 5, choice % len(COUNTS))
            else:
                self._last = self._step([slot for slot in range(len(COUNTS)) if choice >> slot & 1], choice >> 3, kind)
            yield self._last

    def _change(self, adds: bool, slot: int) -> bytes:
        if adds:
            self._histories[slot] = [1, 2]
            added = processing_pb2.SlottedRequest(slot=slot)
            return _Message(seq=self._seq, add=processing_pb2.AddRequests(requests=[added])).SerializeToString()
        self._histories.pop(slot, None)
        removed = processing_pb2.RemoveRequests(slots=int32(slot), generations=int32(0))
        return _Message(seq=self._seq, remove=removed).SerializeToString()

    def _step(self, slots: list[int], new_ids: int, kind: int) -> bytes:
        histories = [self._histories.get(slot, [1]) for slot in slots]
        step = processing_pb2.Step(
            slots=int32(*slots),
            generations=int32(*[0] * len(slots)),
            base_lengths=int32(*map(len, histories)),
            history_crcs=np.array(
                [extend_crc(0, ids) + (kind == 3) & 0xFFFFFFFF for ids in histories], "<u4"
            ).tobytes(),
            new_token_counts=int32(*[new_ids] * len(slots)),
            new_token_ids=int32(*[5] * (new_ids * len(slots))),
        )
        if kind < 3 and all(slot in self._histories for slot in slots):
            for slot in slots:
                self._histories[slot] += [5] * new_ids
        return _Message(seq=self._seq, step=step).SerializeToString()


class _Requests:
    """The requests of a session in the core."""

    def __init__(self) -> None:
        self.batch: Any = core.Batch(VOCAB, 4, 1 << 20, 1 << 20, _MAX_BYTES, [1.0], [1.0])
        for slot in range(len(COUNTS)):
            self.add(slot)

    def add(self, slot: int) -> None:
        history = core.History(np.array([1, 2], np.int32), np.empty(0, np.int32))
        state = core.TokenList(np.arange(COUNTS[slot], dtype=np.int32))
        self.batch.put(slot, 0, history, [(state, "key", f"name{slot}")])

    def change(self, frame: _Message) -> None:
        """Apply a frame as Python does."""
        for request in frame.add.requests:
            if 0 <= request.slot < len(COUNTS):
                self.add(request.slot)
        for slot in np.frombuffer(frame.remove.slots[: len(frame.remove.slots) // 4 * 4], "<i4"):
            self.batch.remove(int(slot))

    def step(self, frame: bytes, seq: int) -> bytes | None:
        return self.batch.step(frame, seq, 0, False, core.Transport.LOCAL)  # type: ignore[no-any-return]


def _serve(server: socket.socket, frames: list[bytes]) -> list[bytes]:
    """Answer frames in the core, and leave out those that are Python's. Returns the replies that are expected."""
    served, reference = _Requests(), _Requests()
    expected: list[bytes] = []
    seq, received = 0, b""
    rest = iter(frames)
    while True:
        goes_on, received, last_seq, last_reply, error = served.batch.serve(
            server.fileno(), received, _MAX_BYTES, seq, False, core.Transport.LOCAL, _SECONDS
        )
        assert error == 0
        for number in range(seq + 1, last_seq + 1):
            reply = reference.step(next(rest), number)
            assert reply is not None, "the core has answered a frame that it refuses"
            expected.append(reply)
        assert last_reply == (expected[-1] if last_seq != seq else b"")
        seq = last_seq
        if goes_on:
            continue
        frame = next(rest, None)
        if frame is None:
            assert received == b""
            return expected
        assert reference.step(frame, seq + 1) is None, "the core has refused a frame that it answers"
        received = _without_frame(server, received, frame)
        message = _parsed(frame)
        if message.seq == seq + 1:
            seq += 1
            served.change(message)
            reference.change(message)


def _without_frame(server: socket.socket, received: bytes, frame: bytes) -> bytes:
    """Receive the rest of a frame, as Python does. Returns what was received after it."""
    framed = _LENGTH.pack(len(frame)) + frame
    if len(received) < len(framed):
        received += server.recv(len(framed) - len(received), socket.MSG_WAITALL)
    assert received.startswith(framed)
    return received[len(framed) :]


def _parsed(frame: bytes) -> _Message:
    """Return the message of a frame; an empty one if it is none, which Python refuses."""
    try:
        return _Message.FromString(frame)
    except DecodeError:
        return _Message()


def _send(engine: socket.socket, frames: list[bytes]) -> None:
    engine.sendall(b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames))
    engine.shutdown(socket.SHUT_WR)


def _receive(engine: socket.socket, replies: list[bytes]) -> None:
    with engine.makefile("rb") as stream:
        while header := stream.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(header)
            replies.append(stream.read(length))


def int32(*values: int) -> bytes:
    """A column of int32."""
    return struct.pack(f"<{len(values)}i", *values)
