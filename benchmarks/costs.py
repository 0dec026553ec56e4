"""Processor time and memory of the server."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.contestants import RoundTrip, Service, add_requests, close_all
from benchmarks.floors import SocketEcho
from benchmarks.kinds import NGRAM
from benchmarks.measure import ROUNDS, Ratio
from benchmarks.records import BarLine, Findings
from benchmarks.servers import echo_server
from benchmarks.workloads import Workload
from logitport import Request
from logitport.session.frames import Handle, add_frames, step_frame
from logitport_proto.processing_pb2 import OpenSession, SessionRequest, SessionResponse
from logitport_server.config import ServerConfig
from logitport_server.executors import InlineExecutor
from logitport_server.metrics import Metrics
from logitport_server.registry.loader import Loader
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.registry import Registry
from logitport_server.session.session import EngineSession
from logitport_server.transports.stream import SessionStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.contestants import Transport
    from benchmarks.servers import Server
    from logitport import Client

_MANY = Workload(rows=256)
_STEPS = 60
_REQUESTS = 48


def server_cpu(server: Server, client: Client) -> Findings:
    """Processor time with both transports, of transferring the bytes alone, and of the steps alone."""
    services = [cpu_of_a_row_step(server, client, transport) for transport in ("local", "grpc")]
    return Findings([], [*services, cpu_of_the_bytes(client), cpu_in_a_loop()])


def cpu_of_a_row_step(server: Server, client: Client, transport: Transport) -> BarLine:
    """Processor time of all threads of the server, user and kernel mode, in steps of 256 rows of the mix."""
    service = Service(client, _MANY, transport)
    spent = _cpu_of(service.step, lambda: server.cpu_seconds)
    service.close()
    return BarLine(f"server CPU a row-step, 256 rows of the mix, {transport}", spent, 4.0, "µs")


def cpu_of_the_bytes(client: Client) -> BarLine:
    """Processor time of a server that receives and sends the same number of bytes over a Unix socket."""
    session = RoundTrip(client, _MANY, "local")
    with echo_server("socket_echo.py") as server:
        echo = SocketEcho(server.target, _MANY, session)
        spent = _cpu_of(echo.step, lambda: server.cpu_seconds)
        close_all((echo, session))
    return BarLine("server CPU a row-step, the same bytes over a bare Unix socket", spent, None, "µs")


def cpu_in_a_loop() -> BarLine:
    """Processor time of the same steps in this thread without pauses: parsed, answered, serialised."""
    answer, frames = _stream_of(_MANY, steps=ROUNDS * _STEPS)

    def step(_: Sequence[int]) -> None:
        answer(SessionRequest.FromString(next(frames))).SerializeToString()

    gc.disable()  # it would scan mostly objects of the benchmarks
    spent = _cpu_of(step, time.thread_time)
    gc.enable()
    return BarLine("server CPU a row-step, the same steps in a loop", spent, None, "µs")


def _cpu_of(step: Callable[[Sequence[int]], None], clock: Callable[[], float]) -> Ratio:
    """Microseconds per row and step, by round."""
    spent = []
    for sampled in np.array_split(_MANY.sampled(ROUNDS * _STEPS), ROUNDS):
        before = clock()
        for token_ids in sampled.tolist():
            step(token_ids)
        spent.append((clock() - before) / (_STEPS * _MANY.rows) * 1e6)
    return Ratio(float(np.median(spent)), min(spent), max(spent))


def _stream_of(workload: Workload, steps: int) -> tuple[Callable[[SessionRequest], SessionResponse], Iterator[bytes]]:
    """The handler of a session with the workload's requests, and the frames of its steps."""
    loader = Loader(1)
    registry = Registry(PayloadPolicy(allow_shipped=False, max_bytes=0), max_registered=0, max_owned=0)

    def open_session(opening: OpenSession) -> EngineSession:
        return EngineSession(opening, registry, InlineExecutor(loader), torch.device("cpu"), ServerConfig())

    stream = SessionStream(open_session, Metrics(loader), None)
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
        reply = stream.answer(frame, "local")
        assert not reply.added.failures, reply
    frames = []
    for seq, token_ids in enumerate(workload.sampled(steps), len(admissions) + 1):
        new = {handle: (token_id,) for handle, token_id in zip(handles, token_ids, strict=True)}
        step = step_frame(new, {}, [(handle, 0) for handle in handles], workload.vocab_size)
        frames.append(SessionRequest(seq=seq, step=step).SerializeToString())
        for handle, new_ids in new.items():
            handle.history.extend(new_ids)

    def answer(frame: SessionRequest) -> SessionResponse:
        reply = stream.answer(frame, "local")
        stream.record()
        return reply

    return answer, iter(frames)


def server_memory(server: Server, client: Client) -> Findings:
    """Growth of the server's resident memory by many requests: when admitted, and over 2048 further steps."""
    workload = Workload(rows=_REQUESTS, history=32_768, kinds=(NGRAM,))
    with client.session(vocab_size=workload.vocab_size) as session:
        kept = add_requests(session, Workload(rows=8, history=32_768, kinds=(NGRAM,)))  # warm-up of the allocator
        before = server.resident_bytes
        handles = add_requests(session, workload)
        session.step({handle: [] for handle in handles}).edits()
        admitted = (server.resident_bytes - before) / _REQUESTS / 1e6
        grown = []
        for token_ids in workload.sampled(2048):
            session.step({handle: (token_id,) for handle, token_id in zip(handles, token_ids, strict=True)}).edits()
            grown.append((server.resident_bytes - before) / _REQUESTS / 1e6)
        del kept
    name = "server memory a request, n-gram over 32k ids"
    over_time = Ratio(float(np.median(grown)), min(grown), max(grown))
    return Findings(
        [],
        [
            BarLine(f"{name}, when admitted", Ratio(*[admitted] * 3), 1.5, "MB"),
            BarLine(f"{name}, over 2048 further steps", over_time, 1.5, "MB"),
        ],
    )
