"""An attacker who sends frames and calls that no client sends. Its own errors are counted, not reported."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any

import grpc
from benchmarks.hostile.raw import RawSession, checksum, int32

from logitport_proto import common_pb2, processing_pb2
from tests.storm.actors.base import Actor, tolerating

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.storm.script import Event

_VOCAB = 4096
_METHODS = ("LogitProcessing/Apply", "LogitProcessing/GetLoad", "ProcessorRegistry/Register", "ProcessorRegistry/List",
            "ProcessorRegistry/GetOutput", "Admin/GetStatus", "Admin/Drain", "Nothing/AtAll")  # fmt: skip
_TIMEOUT_SECONDS = 20.0
# Errors of hostile calls, besides those of the SDK.
_ERRORS = (grpc.RpcError, StopIteration, ValueError, struct.error)


class Attacker(Actor):
    """Has a token without the scope `admin`."""

    kind = "attacker"

    @staticmethod
    def draw(random: Random, seconds: float, principal: str = "", servers: int = 1, **given: Any) -> list[Event]:
        at, events = 0.5, []
        while (at := round(at + random.expovariate(0.5), 3)) < seconds:
            event = {"at": at, "do": random.choice(_ATTACKS), "seed": random.randrange(1 << 30)}
            event |= {"principal": principal, "server": random.randrange(servers)}
            event |= {"transport": random.choice(["local", "grpc"]), "seconds": random.choice([0.5, 2, 5])}
            events.append(event)
        return events

    def do(self, event: Event) -> None:
        """Run an attack."""
        with tolerating(self.count, *_ERRORS):
            super().do(event)

    def cut_frames(self, event: Event) -> None:
        """Send frames that are cut, and close the connection."""
        random = Random(event["seed"])
        for _ in self._rounds(event):
            with self._session(event) as session, tolerating(self.count, *_ERRORS):
                data = _add(session, random.randrange(4)).SerializeToString()
                data = data[: random.randrange(len(data))]
                if session.connection is None:
                    session.post(data)
                else:
                    session.connection.sendall(struct.pack("<I", len(data) + random.choice([0, 9, 1 << 31])) + data)

    def double_frames(self, event: Event) -> None:
        """Send each frame several times, and some in a wrong order."""
        random = Random(event["seed"])
        with self._session(event) as session:
            for _ in self._rounds(event, 0.01):
                frame = random.choice([_add, _step])(session, random.randrange(4))
                frame.seq += random.choice([0, 0, 0, 1, -1, 1 << 40])
                for _ in range(random.randint(1, 3)):
                    session.exchange(frame.SerializeToString())

    def send_garbage(self, event: Event) -> None:
        """Send frames and calls of random bytes."""
        random = Random(event["seed"])
        metadata = (("authorization", f"Bearer {self._token(event)}"),)
        with grpc.insecure_channel(self._target(event)) as channel:
            for _ in self._rounds(event, 0.01):
                data = _garbage(random)
                with tolerating(self.count, *_ERRORS), suppress(AttributeError):
                    method: Any = channel.unary_unary(f"/logitport.v1.{random.choice(_METHODS)}")
                    method(data, metadata=metadata, timeout=_TIMEOUT_SECONDS)
                with tolerating(self.count, *_ERRORS), self._session(event) as session:
                    session.exchange(data)

    def flood(self, event: Event) -> None:
        """Send small frames, and calls with a wrong token, as fast as possible."""
        wrong = (("authorization", f"Bearer {os.urandom(16).hex()}"),)
        with self._session(event) as session, grpc.insecure_channel(self._target(event)) as channel:
            method: Any = channel.unary_unary("/logitport.v1.LogitProcessing/GetLoad")
            for _ in self._rounds(event):
                session.exchange(_step(session, 0).SerializeToString())
                with suppress(grpc.RpcError):
                    method(b"", metadata=wrong, timeout=_TIMEOUT_SECONDS)

    def leave_connections_half_open(self, event: Event) -> None:
        """Open connections on which nothing, or the begin of a preface, is sent."""
        host, _, port = self._target(event).rpartition(":")
        with ExitStack() as stack:
            for number in range(300):
                connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
                connection.sendall(b"PRI * HTTP/2.0"[: number % 15])
            self.pause(event["seconds"])

    def open_many_sessions(self, event: Event) -> None:
        """Open sessions until no more are accepted."""
        with ExitStack() as stack:
            with tolerating(self.count, *_ERRORS):
                for _ in range(80):
                    stack.enter_context(self._session(event))
            self.pause(event["seconds"])

    # Parts of attacks.

    def _rounds(self, event: Event, pause: float = 0.0) -> Iterator[None]:
        """Rounds until the attack's time is over."""
        until = min(time.monotonic() + event["seconds"], self.setting.until)
        while time.monotonic() < until:
            self.count[event["do"].replace("_", " ")] += 1
            yield
            time.sleep(pause)

    def _target(self, event: Event) -> str:
        return self.setting.targets[event["server"]]

    def _token(self, event: Event) -> str:
        return self.setting.tokens[event["principal"]]

    @contextmanager
    def _session(self, event: Event) -> Iterator[RawSession]:
        opening = {"vocab_size": _VOCAB, "datatype": "FP32"}
        session = RawSession(self._target(event), self._token(event), event["transport"], **opening)
        try:
            yield session
        finally:
            session.end()


_ATTACKS = (
    "cut_frames", "double_frames", "send_garbage", "flood", "leave_connections_half_open", "open_many_sessions",
)  # fmt: skip


def _add(session: RawSession, slot: int) -> processing_pb2.SessionRequest:
    session.seq += 1
    call = common_pb2.ProcessorCall(
        processor=common_pb2.Processor(builtin="disallowed_tokens"), params=b'{"token_ids": [2]}'
    )
    added = processing_pb2.SlottedRequest(
        slot=slot, request=common_pb2.Request(prompt_token_ids=[1], processors=[call])
    )
    return processing_pb2.SessionRequest(seq=session.seq, add=processing_pb2.AddRequests(requests=[added]))


def _step(session: RawSession, slot: int) -> processing_pb2.SessionRequest:
    session.seq += 1
    step = processing_pb2.Step(
        slots=int32([slot]), generations=int32([0]), base_lengths=int32([1]), history_crcs=checksum([1])
    )
    return processing_pb2.SessionRequest(seq=session.seq, step=step)


def _garbage(random: Random) -> bytes:
    """Random bytes, or a valid message with some bytes changed."""
    if random.random() < 0.3:
        return random.choice([random.randbytes, bytes])(random.choice([0, 1, 20, 5000, 40 << 20]))
    ids = int32([random.choice([0, -1, 5, 1 << 30]) for _ in range(random.randint(0, 5))])
    step = processing_pb2.Step(slots=ids, generations=ids, base_lengths=ids, history_crcs=ids, new_token_ids=ids)
    data = bytearray(processing_pb2.SessionRequest(seq=random.choice([1, 2]), step=step).SerializeToString())
    for _ in range(random.randint(0, 3)):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data)
