"""Measures the costs on real servers. Processor time of processes; lower quartiles of repeated rounds."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
import numpy as np

from benchmarks.contestants import Service
from benchmarks.fleet_sim import capacity, checks
from benchmarks.fleet_sim.costs import Costs, Measured, StepCost, fit
from benchmarks.fleet_sim.load import Load
from benchmarks.fleet_sim.pinned import LOAD_CORE, pinned, quartile, report, under_load
from benchmarks.kinds import BAN, NGRAM, THINKING
from benchmarks.machine import Bystanders, describe
from benchmarks.measure import ROUNDS
from benchmarks.servers import connected, logitport_server
from benchmarks.workloads import Workload
from logitport import Request
from logitport.session.frames import Handle, add_frames
from logitport.targets import source_of
from logitport_proto import processing_pb2, processing_pb2_grpc
from logitport_server.fleet.directory import PATH, Directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.contestants import Transport
    from benchmarks.servers import Server

_ROWS = (8, 64, 256)
# Engines and their rate for each number of rows: the server is then about half busy.
_HALF_BUSY = {8: (40, 30.0), 64: (16, 30.0), 256: (8, 20.0)}
_HISTORIES = (1024, 8192, 32_768)
_REPLAYING = 4
_CALLS = 500
_SESSIONS = 100


def measure() -> Measured:
    """Measure everything, in about ten minutes."""
    started, bystanders = time.strftime("%Y-%m-%d %H:%M"), Bystanders()
    steps = [*_steps_of_many(), *_steps_of_one("grpc"), *_steps_of_one("local")]
    checked, stormed = checks.levels(), checks.storms()
    by_load = {
        load: fit([(step.rows, step.seconds) for step in steps if step.load == load])
        for load in dict.fromkeys(step.load for step in steps)
    }
    many, one, local = (by_load[load] for load in ("many engines, gRPC", "one engine, gRPC", "one engine, local"))
    request, of_id = _replays()
    get_load, get_load_client = _get_load()
    session_bytes, opening = _sessions()
    request_bytes, id_bytes = _memory()
    costs = Costs(
        *many,
        *one,
        *local,
        opening,
        request,
        of_id,
        _replay_of_client(),
        *(0.0, 0.0),  # the shares follow from the storms
        get_load,
        get_load_client,
        _keepalive(),
        session_bytes,
        request_bytes,
        id_bytes,
        *_read_addresses(),
        _start(),
    )
    return Measured(
        machine=describe().described,
        started=started,
        others=bystanders.share(),
        costs=checks.with_shares(costs, stormed[0]),
        steps=steps,
        check_rows=checks.CHECK_ROWS,
        check_steps_a_second=checks.CHECK_STEPS,
        levels=checked,
        storms=stormed,
    )


def _steps_of_many() -> Iterator[StepCost]:
    """Steps of many engines, which keep the server half busy."""
    for rows, (engines, steps) in _HALF_BUSY.items():
        spent = []
        with pinned() as server:
            for _ in range(ROUNDS):
                load = Load(server.target, engines, rows, 4096, steps, 3.0, core=LOAD_CORE)
                latencies, _, used, _ = under_load(server, load)
                spent.append(used / latencies.sent)
        report(f"many engines, gRPC, {rows} rows: {spent}")
        yield StepCost("many engines, gRPC", rows, quartile(spent), min(spent), max(spent))


def _steps_of_one(transport: Transport) -> Iterator[StepCost]:
    """Steps of one engine, which sends the next frame when it has the reply."""
    for rows in _ROWS:
        workload, spent = Workload(rows=rows), []
        with connected() as (server, client):
            service = Service(client, workload, transport)
            for sampled in np.array_split(workload.sampled(ROUNDS * 150), ROUNDS):
                before = server.cpu_seconds
                for token_ids in sampled.tolist():
                    service.step(token_ids)
                spent.append((server.cpu_seconds - before) / len(sampled))
            service.close()
        name = "gRPC" if transport == "grpc" else transport
        report(f"one engine, {name}, {rows} rows: {spent}")
        yield StepCost(f"one engine, {name}", rows, quartile(spent), min(spent), max(spent))


def _replays() -> tuple[float, float]:
    """Processor seconds of the server to admit a request, and for each id of its history."""
    points = []
    with pinned() as server:
        for history in _HISTORIES:
            spent = []
            for _ in range(ROUNDS):
                load = Load(server.target, 0, 64, history, 1.0, 2.0, _REPLAYING, LOAD_CORE)
                latencies, _, used, _ = under_load(server, load)
                spent.append(used / 64 / len(latencies.replays))
            report(f"replays of {history} ids, a request: {spent}")
            points.append((history, quartile(spent)))
    return fit(points)


def _replay_of_client() -> float:
    """Processor seconds of the engine for each id that it sends again."""
    workload = Workload(rows=16, history=32_768)
    handles = [Handle(row, 0, Request(ids, [], [])) for row, ids in enumerate(workload.histories().tolist())]
    spent = []
    for _ in range(ROUNDS):
        before = time.thread_time()
        for add in add_frames(handles):
            processing_pb2.SessionRequest(add=add).SerializeToString()
        spent.append((time.thread_time() - before) / (workload.rows * workload.history))
    return quartile(spent)


def _get_load() -> tuple[float, float]:
    """Processor seconds of one GetLoad: of the server, of the client."""
    of_server, of_client = [], []
    with (
        pinned("--device", "cpu", "--max-call-rate", "1000000/second") as server,
        grpc.insecure_channel(server.target) as channel,
    ):
        stub = processing_pb2_grpc.LogitProcessingStub(channel)
        for _ in range(ROUNDS):
            before = server.cpu_seconds, time.process_time()
            for _ in range(_CALLS):
                stub.GetLoad(processing_pb2.GetLoadRequest())
            of_server.append((server.cpu_seconds - before[0]) / _CALLS)
            of_client.append((time.process_time() - before[1]) / _CALLS)
    return quartile(of_server), quartile(of_client)


def _sessions() -> tuple[float, float]:
    """Memory of a session, and the server's processor seconds to open it: each with a connection of its own."""
    options = ("--device", "cpu", "--max-sessions-per-principal", "1024")
    spent, kept = [], []
    for _ in range(3):
        with logitport_server(*options) as server:
            with _idle_sessions(server, 10):
                pass
            before = server.cpu_seconds, server.resident_bytes
            with _idle_sessions(server, _SESSIONS):
                spent.append((server.cpu_seconds - before[0]) / _SESSIONS)
                kept.append((server.resident_bytes - before[1]) / _SESSIONS)
    return float(np.median(kept)), quartile(spent)


def _keepalive() -> float:
    """The server's processor seconds for a ping of an idle connection: one a second, instead of one each 30 s."""
    shares = []
    options = ("--device", "cpu", "--max-sessions-per-principal", "1024")
    for pings in (1, 3600):
        keepalive = ("--keepalive-seconds", str(pings))
        with logitport_server(*options, *keepalive) as server, _idle_sessions(server, _SESSIONS):
            time.sleep(2.0)
            rounds = []
            for _ in range(ROUNDS):
                before = server.cpu_seconds
                time.sleep(2.0)
                rounds.append((server.cpu_seconds - before) / 2.0 / _SESSIONS)
            shares.append(quartile(rounds))
    return max(0.0, shares[0] - shares[1])


@contextmanager
def _idle_sessions(server: Server, count: int) -> Iterator[None]:
    """Open sessions without requests, each with a connection of its own."""
    closing = threading.Event()
    opening = processing_pb2.SessionRequest(
        seq=1, open=processing_pb2.OpenSession(vocab_size=151_936, datatype="FP32", max_requests=64)
    )

    def frames() -> Iterator[processing_pb2.SessionRequest]:
        yield opening
        closing.wait()

    channels, calls = [], []
    for number in range(count):
        options = [("engine", number), ("grpc.use_local_subchannel_pool", 1)]
        channels.append(grpc.insecure_channel(server.target, options=options))
        calls.append(processing_pb2_grpc.LogitProcessingStub(channels[-1]).Session(frames()))
        assert next(calls[-1]).WhichOneof("frame") == "opened"
    try:
        yield
    finally:
        closing.set()
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()


def _memory() -> tuple[float, float]:
    """Memory of a request of the mix, and of each id of its history."""
    points = []
    for history in (1024, 32_768):
        with connected() as (server, client):
            workload = Workload(rows=66, history=history, kinds=(THINKING, NGRAM, BAN))
            warm_up = Service(client, Workload(rows=6, history=history), "grpc")
            before = server.resident_bytes
            service = Service(client, workload, "grpc")
            points.append((server.resident_bytes - before) / workload.rows)
            service.close()
            warm_up.close()
    each = (points[1] - points[0]) / (32_768 - 1024)
    return max(0.0, points[0] - each * 1024), each


def _read_addresses() -> tuple[float, float]:
    """Processor seconds to read a list of 1,000 addresses: of the directory, of the client."""
    directory = Directory("127.0.0.1", 0)
    directory.publish(capacity.list_of(1000))
    read = source_of(f"http://127.0.0.1:{directory.port}{PATH}").read
    of_directory, of_client = [], []
    for _ in range(4 * ROUNDS):
        before = time.process_time(), time.thread_time()
        read()
        client = time.thread_time() - before[1]
        of_client.append(client)
        of_directory.append(time.process_time() - before[0] - client)
    directory.close()
    return quartile(of_directory), quartile(of_client)


def _start() -> float:
    """Seconds from the start of a server, with shipped processors, to its line that it is ready."""
    spent = []
    for _ in range(3):
        began = time.perf_counter()
        with logitport_server():
            spent.append(time.perf_counter() - began)
    return quartile(spent)
