"""Engines that only send and receive: the load of many engines from one process, which needs little processor time.

`python -m benchmarks.fleet_sim.load` reads a `Load` as JSON from stdin and prints a `Latencies`. Frames are serialized
before the load begins, and replies are not parsed: the SDK would need as much processor time as the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import NamedTuple

import grpc.aio

from benchmarks.session_frames import SessionFrames, check_admission, session_frames
from benchmarks.workloads import Workload

_METHOD = "/logitport.v1.LogitProcessing/Session"
_SEED = 5
# Share of the period by which each step comes earlier or later: engines do not stay in phase.
STEP_JITTER = 0.05


class Load(NamedTuple):
    """Load that the engines send.

    Attributes:
        target: the server.
        engines: number of sessions.
        rows: requests of each.
        history: ids of each request before the first step.
        steps_a_second: of each engine; 0 for the next step as soon as the reply has arrived.
        seconds: how long.
        storm: number of further sessions that are opened at half of that time, all at once, and then step, too.
        core: the processor core of the process.
    """

    target: str
    engines: int
    rows: int
    history: int
    steps_a_second: float
    seconds: float
    storm: int = 0
    core: int | None = None


class Latencies(NamedTuple):
    """Times of the engines' steps.

    Attributes:
        begun: when each step of the engines that were there from the start was sent, in seconds since the start.
        steps: seconds from each of these frames to its reply.
        replays: seconds from the first frame of each session of the storm to the reply to its first step.
        sent: number of all steps.
    """

    begun: list[float]
    steps: list[float]
    replays: list[float]
    sent: int


class _Engine:
    """One session."""

    def __init__(self, channel: grpc.aio.Channel, frames: SessionFrames) -> None:
        self._call = channel.stream_stream(_METHOD)()
        self._frames = frames
        self._steps = iter(frames.steps)
        self.begun: list[float] = []
        self.latencies: list[float] = []

    async def open(self) -> None:
        for frame in self._frames.admissions:
            check_admission(await self._exchange(frame))

    async def run(self, period: float, until: float, rng: random.Random) -> None:
        due = time.perf_counter() + period * rng.random()
        for frame in self._steps:
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            begun = time.perf_counter()
            if begun >= until:
                return
            await self._exchange(frame)
            self.begun.append(begun)
            self.latencies.append(time.perf_counter() - begun)
            due = max(due, begun) + period * rng.uniform(1 - STEP_JITTER, 1 + STEP_JITTER)
        raise RuntimeError("the prepared frames are used up")

    async def replay(self, period: float, until: float, rng: random.Random) -> float:
        """Open the session, and step. Returns the seconds to the first reply to a step."""
        begun = time.perf_counter()
        await self.open()
        await self._exchange(next(self._steps))
        took = time.perf_counter() - begun
        await self.run(period, until, rng)
        return took

    async def _exchange(self, frame: bytes) -> bytes:
        await self._call.write(frame)
        reply: bytes = await self._call.read()
        return reply

    def close(self) -> None:
        self._call.cancel()


async def run(load: Load) -> Latencies:
    """Open the sessions, and send steps for `load.seconds`."""
    rng = random.Random(_SEED)
    period = 1 / load.steps_a_second if load.steps_a_second else 0.0
    steps = int(load.seconds / max(period, 2e-4) * 1.2) + 10
    frames = session_frames(Workload(rows=load.rows, history=load.history), steps)
    # A connection for each engine, as engines have; gRPC would share one between channels with equal options.
    channels = [
        grpc.aio.insecure_channel(load.target, options=[("engine", number), ("grpc.use_local_subchannel_pool", 1)])
        for number in range(load.engines + load.storm)
    ]
    engines = [_Engine(channel, frames) for channel in channels]
    present, late = engines[: load.engines], engines[load.engines :]
    for engine in present:
        await engine.open()
    print("open", flush=True)
    sys.stdin.readline()  # the caller has read the clocks
    start = time.perf_counter()
    until = start + load.seconds
    running = [asyncio.create_task(engine.run(period, until, rng)) for engine in present]
    if late:
        await asyncio.sleep(load.seconds / 2)
    replays = await asyncio.gather(*(engine.replay(period, until, rng) for engine in late))
    await asyncio.gather(*running)
    print("done", flush=True)
    sys.stdin.readline()
    for engine in engines:
        engine.close()
    begun = [at - start for engine in present for at in engine.begun]
    latencies = [latency for engine in present for latency in engine.latencies]
    sent = sum(len(engine.latencies) for engine in engines) + len(late)
    return Latencies(begun, latencies, replays, sent)


def main() -> None:
    load = Load(**json.loads(sys.stdin.readline()))
    if load.core is not None:
        os.sched_setaffinity(0, {load.core})
    print(json.dumps(asyncio.run(run(load))._asdict()), flush=True)


if __name__ == "__main__":
    main()
