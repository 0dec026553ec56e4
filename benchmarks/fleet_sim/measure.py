"""Measures the costs on real servers. Processor time of processes; lower quartiles of repeated rounds."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np

from benchmarks.contestants import Service
from benchmarks.fleet_sim.costs import Costs, Level, Measured, StepCost, Storm, fit
from benchmarks.fleet_sim.load import Latencies, Load
from benchmarks.kinds import BAN, NGRAM, THINKING
from benchmarks.machine import Bystanders, describe
from benchmarks.measure import LOWER_QUARTILE, ROUNDS
from benchmarks.servers import connected, logitport_server
from benchmarks.workloads import Workload
from logitport import Request
from logitport.session.frames import Handle, add_frames
from logitport.targets import source_of
from logitport_proto import processing_pb2, processing_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.contestants import Transport
    from benchmarks.servers import Server

_SERVER_CORE, _LOAD_CORE = 0, 1
_ROWS = (8, 64, 256)
# Engines and their rate for each number of rows: the server is then about half busy.
_HALF_BUSY = {8: (40, 30.0), 64: (16, 30.0), 256: (8, 20.0)}
_HISTORIES = (1024, 8192, 32_768)
_REPLAYING = 4
# A server of many engines, with a size of step and a rate that gave none of the costs.
_CHECK_ROWS, _CHECK_STEPS = 32, 40.0
_LEVELS = (4, 8, 16, 24, 32, 36, 40, 44, 48, 52, 56, 60)
_LEVEL_SECONDS = 4.0
_STORMS = ((24, 8, 32_768), (12, 8, 32_768), (24, 4, 16_384))
_CALLS = 500
_SESSIONS = 100


def measure() -> Measured:
    """Measure everything, in about ten minutes."""
    started, bystanders = time.strftime("%Y-%m-%d %H:%M"), Bystanders()
    steps = [*_steps_of_many(), *_steps_of_one("grpc"), *_steps_of_one("local")]
    checked, stormed = levels(), storms()
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
        # The part of the storm in which the processor served steps: their number, times the time of each.
        stormed[0].steps * (many[0] + many[1] * 64),
        get_load,
        get_load_client,
        _keepalive(),
        session_bytes,
        request_bytes,
        id_bytes,
        _read_addresses(),
        _start(),
    )
    return Measured(
        describe().described, started, bystanders.share(), costs, steps, _CHECK_ROWS, _CHECK_STEPS, checked, stormed
    )


def _quartile(values: list[float]) -> float:
    return float(np.quantile(values, LOWER_QUARTILE))


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def pin(server: Server, core: int) -> None:
    """Run all threads of a server on one core."""
    for thread in Path(f"/proc/{server.pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def under_load(server: Server, load: Load) -> tuple[Latencies, float, float, float]:
    """Run a load. Returns what it received, seconds, processor seconds of the server, and those of others on its core."""
    command = [sys.executable, "-m", "benchmarks.fleet_sim.load"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def send(line: str) -> None:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

        send(json.dumps(load._asdict()))
        assert process.stdout.readline() == "open\n"
        before = server.cpu_seconds, _busy(_SERVER_CORE), time.perf_counter()
        send("")
        assert process.stdout.readline() == "done\n"
        after = server.cpu_seconds, _busy(_SERVER_CORE), time.perf_counter()
        send("")
        latencies = Latencies(**json.loads(process.stdout.read()))
    used, busy, seconds = (late - early for early, late in zip(before, after, strict=True))
    return latencies, seconds, used, max(0.0, busy - used)


def _busy(core: int) -> float:
    """Processor time of all processes on one core since the machine's start."""
    (line,) = [line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} ")]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _pinned(*options: str) -> Iterator[Server]:
    with logitport_server(*options) as server:
        pin(server, _SERVER_CORE)
        yield server


def _steps_of_many() -> Iterator[StepCost]:
    """Steps of many engines, which keep the server half busy."""
    for rows, (engines, steps) in _HALF_BUSY.items():
        spent = []
        with _pinned() as server:
            for _ in range(ROUNDS):
                load = Load(server.target, engines, rows, 4096, steps, 3.0, core=_LOAD_CORE)
                latencies, _, used, _ = under_load(server, load)
                spent.append(used / latencies.sent)
        _report(f"many engines, gRPC, {rows} rows: {spent}")
        yield StepCost("many engines, gRPC", rows, _quartile(spent), min(spent), max(spent))


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
        _report(f"one engine, {name}, {rows} rows: {spent}")
        yield StepCost(f"one engine, {name}", rows, _quartile(spent), min(spent), max(spent))


def levels() -> list[Level]:
    """A server with more and more engines; of three rounds the one with the least use by other processes."""
    found = []
    with _pinned() as server:
        for engines in _LEVELS:
            rounds = []
            for _ in range(3):
                load = Load(server.target, engines, _CHECK_ROWS, 4096, _CHECK_STEPS, _LEVEL_SECONDS, core=_LOAD_CORE)
                latencies, seconds, used, others = under_load(server, load)
                p50, p99 = np.percentile(latencies.steps, (50, 99))
                achieved = latencies.sent / (engines * _CHECK_STEPS * (_LEVEL_SECONDS - 0.5 / _CHECK_STEPS))
                rounds.append(
                    Level(
                        engines,
                        used / seconds,
                        others / seconds,
                        used / latencies.sent,
                        achieved,
                        float(p50),
                        float(p99),
                    )
                )
            found.append(min(rounds, key=lambda level: level.others))
            _report(str(found[-1]))
            if found[-1].achieved < 0.8:
                break
    return found


def storms() -> list[Storm]:
    """Replays beside steps."""
    return [_storm(*storm) for storm in _STORMS]


def _storm(engines: int, replaying: int, history: int) -> Storm:
    """Replays beside steps of 64 rows; of three rounds the one with the least use by other processes."""
    rounds = []
    seconds = 6.0
    with _pinned() as server:
        for _ in range(3):
            load = Load(server.target, engines, 64, history, 25.0, seconds, replaying, _LOAD_CORE)
            latencies, _, _, others = under_load(server, load)
            begun, took = np.array(latencies.begun), np.array(latencies.steps)
            begins, lasts = seconds / 2, max(latencies.replays)
            during = (begun > begins) & (begun + took < begins + lasts)
            found = Storm(
                engines,
                replaying,
                history,
                float(np.median(took[begun + took < begins])),
                float(np.median(took[during])),
                lasts,
                float(during.sum() / lasts),
            )
            rounds.append((others, found))
    _report(str(min(rounds)))
    return min(rounds)[1]


def _replays() -> tuple[float, float]:
    """Processor seconds of the server to admit a request, and for each id of its history."""
    points = []
    with _pinned() as server:
        for history in _HISTORIES:
            spent = []
            for _ in range(ROUNDS):
                load = Load(server.target, 0, 64, history, 1.0, 2.0, _REPLAYING, _LOAD_CORE)
                latencies, _, used, _ = under_load(server, load)
                spent.append(used / 64 / len(latencies.replays))
            _report(f"replays of {history} ids, a request: {spent}")
            points.append((history, _quartile(spent)))
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
    return _quartile(spent)


def _get_load() -> tuple[float, float]:
    """Processor seconds of one GetLoad: of the server, of the client."""
    of_server, of_client = [], []
    with _pinned() as server, grpc.insecure_channel(server.target) as channel:
        stub = processing_pb2_grpc.LogitProcessingStub(channel)
        for _ in range(ROUNDS):
            before = server.cpu_seconds, time.process_time()
            for _ in range(_CALLS):
                stub.GetLoad(processing_pb2.GetLoadRequest())
            of_server.append((server.cpu_seconds - before[0]) / _CALLS)
            of_client.append((time.process_time() - before[1]) / _CALLS)
    return _quartile(of_server), _quartile(of_client)


def _sessions() -> tuple[float, float]:
    """Memory of a session, and the server's processor seconds to open it: each with a connection of its own."""
    options = ("--device", "cpu", "--max-sessions", "1024", "--max-sessions-per-principal", "1024")
    spent, kept = [], []
    for _ in range(3):
        with logitport_server(*options) as server:
            with _idle_sessions(server, 10):
                pass
            before = server.cpu_seconds, server.resident_bytes
            with _idle_sessions(server, _SESSIONS):
                spent.append((server.cpu_seconds - before[0]) / _SESSIONS)
                kept.append((server.resident_bytes - before[1]) / _SESSIONS)
    return float(np.median(kept)), _quartile(spent)


def _keepalive() -> float:
    """The server's processor seconds for a ping of an idle connection: one a second, instead of one each 30 s."""
    shares = []
    options = ("--device", "cpu", "--max-sessions", "1024", "--max-sessions-per-principal", "1024")
    for pings in (1, 3600):
        with logitport_server(*options, "--keepalive-seconds", str(pings)) as server:
            with _idle_sessions(server, _SESSIONS):
                time.sleep(2.0)
                rounds = []
                for _ in range(ROUNDS):
                    before = server.cpu_seconds
                    time.sleep(2.0)
                    rounds.append((server.cpu_seconds - before) / 2.0 / _SESSIONS)
                shares.append(_quartile(rounds))
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


def _read_addresses() -> float:
    """The client's processor seconds to read a document of 1,000 addresses over HTTP."""
    targets = [f"10.0.{number // 250}.{number % 250}:50051" for number in range(1000)]
    document = json.dumps([{"targets": targets}]).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        read: Callable[[], object] = source_of(f"http://127.0.0.1:{listener.server_port}/servers.json").read
        spent = []
        for _ in range(4 * ROUNDS):
            before = time.thread_time()
            read()
            spent.append(time.thread_time() - before)
        listener.shutdown()
    return _quartile(spent)


def _start() -> float:
    """Seconds from the start of a server, with shipped processors, to its line that it is ready."""
    spent = []
    for _ in range(3):
        began = time.perf_counter()
        with logitport_server():
            spent.append(time.perf_counter() - began)
    return _quartile(spent)
