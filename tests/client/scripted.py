"""Helpers for tests against a scripted server: replies to send and frames to inspect. The script is in conftest.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import to_proto
from logitport.session import Session
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from logitport import LogitportError

VOCAB = 4


def failure(slot: int, error: LogitportError, *, skipped: bool = False) -> common_pb2.Failure:
    return common_pb2.Failure(slot=slot, error=to_proto(error), skipped=skipped)


def edits_reply(**fields: Any) -> dict[str, Any]:
    return {"edits": processing_pb2.StepEdits(**fields)}


def int32(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def admitted(frame: processing_pb2.SessionRequest) -> list[processing_pb2.AdmittedChain]:
    """The chains of a frame's requests, as a server reports them."""
    return [
        processing_pb2.AdmittedChain(processors=[call.processor.name or "key" for call in entry.request.processors])
        for entry in frame.add.requests
    ]


def zeros(rows: int = 1) -> np.ndarray[Any, Any]:
    return np.zeros((rows, VOCAB), np.float32)


def kinds(script: Any) -> list[str | None]:
    return [frame.WhichOneof("frame") for frame in script.frames]


class Background:
    """Admits requests in the background: makes a script pending, and ends admissions when the test says so."""

    def __init__(self, script: Any) -> None:
        self.script = script
        self.ended: list[processing_pb2.EndedAdmission] = []
        self.chains: dict[int, processing_pb2.AdmittedChain] = {}
        script.answer = self.answer

    def answer(self, frame: Any) -> dict[str, Any]:
        reply: dict[str, Any] = self.script.correct(frame)
        if frame.HasField("add") and frame.add.in_background:
            reply["added"].pending = b"\1" * len(frame.add.requests)
            self.record(frame)
            reply["added"].ended.extend(self.ended)
            self.ended.clear()
        elif frame.HasField("step"):
            reply["edits"].ended_admissions = len(self.ended)
        return reply

    def record(self, frame: processing_pb2.SessionRequest) -> None:
        """Keep the chains of a frame's requests until their admissions end."""
        self.chains.update(zip((entry.slot for entry in frame.add.requests), admitted(frame), strict=True))

    def end(self, slot: int, generation: int, error: LogitportError | None = None, **fields: Any) -> None:
        outcome = {"error": to_proto(error)} if error is not None else {"chain": self.chains.get(slot)}
        self.ended.append(processing_pb2.EndedAdmission(slot=slot, generation=generation, **{**outcome, **fields}))


class Reconnecting:
    """A session of which each connection reaches the next of several scripted servers."""

    def __init__(self, script: Any, count: int, **options: Any) -> None:
        self.scripts = [script() for _ in range(count)]
        self.servers = [Background(one) for one in self.scripts]
        unused = iter(self.scripts)
        opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
        self.session = Session(lambda _: next(unused), opening, timeout=5, local="grpc", with_torch=False, **options)
