"""Fixtures: a session against a scripted server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import LogitportError, SessionClosed
from logitport.session import Session
from logitport.session.transports.base import Transport
from logitport_proto import processing_pb2
from tests.client.scripted import admitted

if TYPE_CHECKING:
    from collections.abc import Callable

Frame = processing_pb2.SessionRequest
Reply = processing_pb2.SessionResponse
Answer = dict[str, Any]


class Script(Transport):
    """Answers each frame with the result of a function; by default as a correct server without any edits."""

    name = "script"
    target = "nowhere:1"

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.answer: Callable[[Frame], Answer] = self.correct
        self.refuse_to_send: LogitportError | None = None
        self.closed = False

    def send(self, frame: Frame) -> None:
        if self.closed:
            raise SessionClosed("closed")
        if self.refuse_to_send is not None:
            raise self.refuse_to_send
        self.frames.append(Frame.FromString(frame.SerializeToString()))

    def receive(self) -> bytes:
        if self.closed:
            raise SessionClosed("closed")
        frame = self.frames[-1]
        return Reply(**{"seq": frame.seq, **self.answer(frame)}).SerializeToString()

    def close(self) -> None:
        self.closed = True

    @property
    def has_ended(self) -> bool:
        return self.closed

    @staticmethod
    def correct(frame: Frame) -> Answer:
        kind = frame.WhichOneof("frame")
        if kind == "open":
            return {"opened": processing_pb2.SessionOpened(session_id="s", max_requests=3)}
        if kind == "add":
            count = len(frame.add.requests)
            return {"added": processing_pb2.RequestsAdded(reads_logits=bytes(count), chains=admitted(frame))}
        if kind == "remove":
            return {"removed": processing_pb2.RequestsRemoved()}
        if kind == "step":
            return {"edits": processing_pb2.StepEdits()}
        return {"logits": processing_pb2.StepLogitsEdited(logits=frame.logits.logits)}


@pytest.fixture(scope="session")
def opened() -> Callable[..., tuple[Session, Script]]:
    """Opens a session of FP32 logits, 4 wide; returns it and the script of its server."""

    def open_session(script: Script | None = None) -> tuple[Session, Script]:
        script = script or Script()
        opening = processing_pb2.OpenSession(vocab_size=4, datatype="FP32")
        return Session(lambda _: script, opening, timeout=5, local="grpc", with_torch=False), script

    return open_session
