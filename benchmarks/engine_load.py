"""Engines that only send and receive, over Unix sockets: a process for each, with frames that were made before."""

from __future__ import annotations

import multiprocessing
import os
import struct
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.hostile.raw import RawSession
from benchmarks.session_frames import check_admission
from benchmarks.socket_echo import SocketEchoStream
from logitport_proto.processing_pb2 import SessionRequest

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterator, Sequence
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from benchmarks.session_frames import SessionFrames

_LENGTH = struct.Struct("<I")
_RECEIVED_BYTES = 1 << 17
_SPAWN = multiprocessing.get_context("spawn")


class Exchanged(NamedTuple):
    """Steps of all engines at the same time.

    Attributes:
        steps_a_second: of all engines together, while all of them ran.
        cpu_seconds: processor time of the engines for each step.
    """

    steps_a_second: float
    cpu_seconds: float


class EngineLoad:
    """Running engines, each of which sends its next frame when it has the reply to the last one."""

    def __init__(self, pipes: Sequence[Connection], processes: Sequence[int]) -> None:
        self._pipes = pipes
        self._processes = processes

    def pin(self, cores: Collection[int]) -> None:
        """Run the engines on these cores only."""
        for process in self._processes:
            pin(process, cores)

    def run(self, steps: int) -> Exchanged:
        """Make this many steps with each engine."""
        for pipe in self._pipes:
            pipe.send(steps)
        received: list[NDArray[np.float64]] = []
        cpu_seconds = 0.0
        for pipe in self._pipes:
            times, spent = pipe.recv()
            received.append(times)
            cpu_seconds += spent
        # An engine that begins earlier, or ends later, has the server for itself then.
        begin, end = max(times[0] for times in received), min(times[-1] for times in received)
        if end <= begin:  # too few steps: never did all of them run
            begin, end = min(times[0] for times in received), max(times[-1] for times in received)
        counted = sum(np.count_nonzero((times > begin) & (times <= end)) for times in received)
        return Exchanged(counted / (end - begin), cpu_seconds / (len(received) * steps))


def pin(process: int, cores: Collection[int]) -> None:
    """Run all threads of a process on these cores only."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def session_load(target: str, frames: SessionFrames, engines: int) -> Iterator[EngineLoad]:
    """Run engines with a session each at the server's local transport; all of them send the same frames."""
    with _running(_open_session, (target, frames.admissions), frames.steps, engines) as load:
        yield load


@contextmanager
def echo_load(target: str, frames: SessionFrames, reply: bytes, engines: int) -> Iterator[EngineLoad]:
    """Run engines that send the steps' frames to `socket_echo.py`, and receive as many bytes as a server replies."""
    with _running(SocketEchoStream, (target, reply), frames.steps, engines) as load:
        yield load


@contextmanager
def _running(
    connect: Callable[..., RawSession | SocketEchoStream],
    where: tuple[object, ...],
    steps: Sequence[bytes],
    engines: int,
) -> Iterator[EngineLoad]:
    pipes, processes = [], []
    with NamedTemporaryFile() as file:
        for frame in steps:
            file.write(_LENGTH.pack(len(frame)) + frame)
        file.flush()
        try:
            for _ in range(engines):
                ours, theirs = _SPAWN.Pipe()
                pipes.append(ours)
                processes.append(_SPAWN.Process(target=_engine, args=(theirs, connect, where, file.name)))
                processes[-1].start()
                theirs.close()
            for pipe in pipes:
                pipe.recv()  # it is connected
            yield EngineLoad(pipes, [process.pid for process in processes if process.pid is not None])
        finally:
            for pipe in pipes:
                pipe.close()
            for process in processes:
                process.join()


def _engine(
    pipe: Connection, connect: Callable[..., RawSession | SocketEchoStream], where: tuple[object, ...], file: str
) -> None:
    """Connect, and make steps as often as the pipe says how many, until it is closed."""
    frames = _split(Path(file).read_bytes())
    opened = connect(*where)  # kept: a session ends with its gRPC stream
    connection = opened.connection
    pipe.send(None)
    while True:
        try:
            steps = pipe.recv()
        except EOFError:
            return
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


def _open_session(target: str, admissions: Sequence[bytes]) -> RawSession:
    opening = SessionRequest.FromString(admissions[0]).open
    session = RawSession(target, "", "local", **{field.name: value for field, value in opening.ListFields()})
    for frame in admissions[1:]:
        check_admission(session.exchange(frame))
    return session


def _split(data: bytes) -> Iterator[bytes]:
    """Yield frames with their lengths."""
    begin = 0
    while begin < len(data):
        end = begin + _LENGTH.size + _LENGTH.unpack_from(data, begin)[0]
        yield data[begin:end]
        begin = end
