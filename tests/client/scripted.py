"""Scripted servers of sessions: replies to send, and frames to inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import LogitportError, NotFound, ServerUnavailable, SessionClosed
from logitport.errors import to_proto
from logitport.session import Session
from logitport.session.transports.base import Transport
from logitport_proto import common_pb2, processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

VOCAB = 4
Frame = processing_pb2.SessionRequest
Reply = processing_pb2.SessionResponse
Answer = dict[str, Any]


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


class Restoring(Background):
    """Admits requests of `team/slow` in the background, and reports those of a step that it does not have."""

    def __init__(self, script: Any) -> None:
        super().__init__(script)
        self.missing: set[int] = set()
        # Called at each frame that only collects results.
        self.on_collect: Callable[[], object] = lambda: None

    def answer(self, frame: Any) -> dict[str, Any]:
        if frame.HasField("step"):
            stepped = set(np.frombuffer(frame.step.slots, "<i4").tolist())
            failures = [failure(slot, NotFound("no request")) for slot in sorted(stepped & self.missing)]
            return edits_reply(failures=failures, ended_admissions=len(self.ended))
        if not (frame.HasField("add") and frame.add.in_background):
            self.missing -= {one.slot for one in frame.add.requests}
            return dict(self.script.correct(frame))
        if not frame.add.requests:
            self.on_collect()
        slow = [bool(one.request.processors) and "slow" in str(one.request.processors) for one in frame.add.requests]
        self.missing |= {one.slot for one, is_slow in zip(frame.add.requests, slow, strict=True) if is_slow}
        self.missing -= {one.slot for one in self.ended if not one.HasField("error")}
        added = processing_pb2.RequestsAdded(reads_logits=bytes(len(slow)), ended=self.ended)
        added.chains.extend(admitted(frame))
        self.record(frame)
        added.pending = bytes(slow) if any(slow) else b""
        self.ended.clear()
        return {"added": added}


class Script(Transport):
    """Answers each frame with the result of a function; by default as a correct server without any edits."""

    name = "script"
    target = "nowhere:1"

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.answered = 0
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
        frame = self.frames[self.answered]
        self.answered += 1
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


class Servers:
    """A session of FP32 logits, 4 wide, of which each connection reaches the next of several scripted servers."""

    def __init__(self, scripts: int | list[Script], **options: Any) -> None:
        self.scripts = scripts if isinstance(scripts, list) else [Script() for _ in range(scripts)]
        unused = iter(self.scripts)
        opening = processing_pb2.OpenSession(vocab_size=VOCAB, datatype="FP32")
        self.session = Session(lambda _: next(unused), opening, timeout=5, local="grpc", with_torch=False, **options)

    def end(self, *numbers: int) -> None:
        for number in numbers:
            end_server(self.scripts[number])

    def answer_steps(self, answer: Answer) -> None:
        for script in self.scripts:
            script.answer = lambda frame, correct=script.correct: answer if frame.HasField("step") else correct(frame)

    def kinds(self, number: int) -> list[str | None]:
        return kinds(self.scripts[number])


class Reconnecting(Servers):
    """The servers admit requests in the background, until the test ends their admissions."""

    def __init__(self, scripts: int | list[Script] = 2, **options: Any) -> None:
        super().__init__(scripts, **options)
        self.servers = [Background(one) for one in self.scripts]


def end_server(script: Script) -> None:
    script.refuse_to_send = ServerUnavailable("gone")
