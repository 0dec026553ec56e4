"""Engines that only send and receive, over Unix sockets: a process for each, with frames that were made before."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

import numpy as np

from benchmarks.helper import Helper, commands
from benchmarks.hostile.raw import RawSession
from benchmarks.workloads import Workload
from logitport import Request
from logitport.session import Handle
from logitport.session.requests.request_frames import add_frames
from logitport.session.steps.step_frame import step_frame
from logitport_proto.processing_pb2 import OpenSession, SessionRequest, SessionResponse


class SessionFrames(NamedTuple):
    """The frames of one session, in order.

    Attributes:
        admissions: the frame that opens the session, and those that add its requests.
        steps: one frame for each step.
    """

    admissions: list[bytes]
    steps: list[bytes]


def session_frames(workload: Workload, steps: int) -> SessionFrames:
    """Serialize the frames of a session with the workload's requests."""
    prompt = workload.history // 2
    handles = []
    for row, ids in enumerate(workload.histories().tolist()):
        kind = workload.kind(row)
        chain = [(kind.ours, kind.params)] if kind is not None else []
        handles.append(Handle(row, 0, Request(ids[:prompt], ids[prompt:], chain)))
    opening = OpenSession(vocab_size=workload.vocab_size, datatype="FP32", max_requests=workload.rows)
    admissions = [SessionRequest(open=opening), *(SessionRequest(add=add) for add in add_frames(handles))]
    for seq, frame in enumerate(admissions, 1):
        frame.seq = seq
    frames = []
    for seq, token_ids in enumerate(workload.sampled(steps), len(admissions) + 1):
        new = {handle: (token_id,) for handle, token_id in zip(handles, token_ids, strict=True)}
        step = step_frame(new, {}, [(handle, 0) for handle in handles], workload.vocab_size)
        frames.append(SessionRequest(seq=seq, step=step).SerializeToString())
        for handle, new_ids in new.items():
            handle.history.extend(new_ids)
    return SessionFrames([frame.SerializeToString() for frame in admissions], frames)


def check_admission(reply: bytes) -> SessionResponse:
    """Parse the reply to a frame of `admissions`. Raises AssertionError if it is an error, or refuses a request."""
    parsed = SessionResponse.FromString(reply)
    assert not parsed.HasField("error"), parsed
    assert not parsed.added.failures, parsed
    return parsed


_LENGTH = struct.Struct("<I")
_RECEIVED_BYTES = 1 << 17


class EngineLoad:
    """Running engines, each of which sends its next frame when it has the reply to the last one."""

    def __init__(self, engines: Sequence[Helper]) -> None:
        self._engines = engines

    def pin(self, cores: Collection[int]) -> None:
        """Run the engines on these cores only."""
        for engine in self._engines:
            pin(engine.pid, cores)

    def run(self, steps: int) -> tuple[float, float]:
        """Make this many steps with each engine.

        Returns the steps a second of all engines together, while all of them ran, and their CPU-seconds for each step.
        """
        for engine in self._engines:
            engine.send(steps)
        received, spent = zip(*(engine.receive() for engine in self._engines), strict=True)
        # An engine that begins earlier, or ends later, has the server for itself then.
        begin, end = max(times[0] for times in received), min(times[-1] for times in received)
        if end <= begin:  # too few steps: never did all of them run
            begin, end = min(times[0] for times in received), max(times[-1] for times in received)
        counted = sum(np.count_nonzero((times > begin) & (times <= end)) for times in received)
        return counted / (end - begin), sum(spent) / (len(received) * steps)


def pin(process: int, cores: Collection[int]) -> None:
    """Run all threads of a process on these cores only."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def session_load(target: str, frames: SessionFrames, engines: int) -> Iterator[EngineLoad]:
    """Run engines with a session each at the server's local transport; all of them send the same frames."""
    with NamedTemporaryFile() as file, ExitStack() as stack:
        for frame in frames.steps:
            file.write(_LENGTH.pack(len(frame)) + frame)
        file.flush()
        running = [stack.enter_context(Helper(_engine, target, frames.admissions, file.name)) for _ in range(engines)]
        for engine in running:
            engine.receive()  # it is connected
        yield EngineLoad(running)


def _engine(pipe: Connection, target: str, admissions: Sequence[bytes], file: str) -> None:
    """Open a session, and make as many steps as each command says."""
    frames = _split(Path(file).read_bytes())
    opening = SessionRequest.FromString(admissions[0]).open
    session = RawSession(target, "", "local", **{field.name: value for field, value in opening.ListFields()})
    for frame in admissions[1:]:
        check_admission(session.exchange(frame))
    connection = session.connection
    assert connection is not None
    pipe.send(None)
    for steps in commands(pipe):
        before = time.process_time()
        times = [time.monotonic(), *(_exchange(connection, next(frames)) for _ in range(steps))]
        pipe.send((np.array(times), time.process_time() - before))


def _exchange(connection: socket.socket, frame: bytes) -> float:
    """Send a frame with its length, and receive the reply. Returns when it had arrived."""
    connection.sendall(frame)
    data = connection.recv(_RECEIVED_BYTES)
    missing = _LENGTH.size + _LENGTH.unpack_from(data)[0] - len(data)
    while missing:
        missing -= len(connection.recv(missing))
    return time.monotonic()


def _split(data: bytes) -> Iterator[bytes]:
    """Yield frames with their lengths."""
    begin = 0
    while begin < len(data):
        end = begin + _LENGTH.size + _LENGTH.unpack_from(data, begin)[0]
        yield data[begin:end]
        begin = end
