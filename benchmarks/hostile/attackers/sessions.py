"""Sessions that end while their replies are not received."""

from __future__ import annotations

from benchmarks.hostile.attackers.base import Attacker
from benchmarks.hostile.raw import RawSession, int32
from logitport_proto import processing_pb2

# Each unknown slot is a failure of about 80 bytes: the reply is larger than the buffers of a socket.
_SLOTS = 6_000
_MAX_SOCKETS = 4_000


class UnreadReplies(Attacker):
    """Keeps the sockets of sessions whose streams it has ended."""

    name = "ended streams with unread replies"
    does = "opens sessions, sends a step with a large reply, ends the stream, and does not receive the reply"
    threads = 4

    def prepare(self) -> None:
        columns = bytes(4 * _SLOTS)
        step = processing_pb2.Step(
            slots=int32(range(_SLOTS)), generations=columns, base_lengths=columns, history_crcs=columns
        )
        self._frame = processing_pb2.SessionRequest(seq=2, step=step).SerializeToString()
        self._sessions: list[RawSession] = []

    def attack(self, thread: int) -> None:
        session = self.raw_session()
        self.counts["sessions"] += 1
        self._sessions.append(session)
        session.post(self._frame)
        session.end_stream()
        if len(self._sessions) > _MAX_SOCKETS:
            self._sessions.pop(0).end()


ATTACKERS: tuple[type[Attacker], ...] = (UnreadReplies,)
