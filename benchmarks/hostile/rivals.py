"""The processes beside the innocent engine: the attacker, and health checks. Each runs as a `Helper`."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.helper import commands
from benchmarks.hostile.attackers import ATTACKERS, Attacker, Target

_ERROR_PAUSE_SECONDS = 0.01
_HEALTH_SECONDS = 0.02
_TIMEOUT_SECONDS = 30.0


def attack(pipe: Connection, name: str, target: Target) -> None:
    """Run an attacker. The first reply follows when everything is open; a command replies with the counts."""
    torch.set_num_threads(1)
    attacker = ATTACKERS[name](target)
    attacker.prepare()
    for thread in range(attacker.threads):
        threading.Thread(target=_repeat, args=(attacker, thread), daemon=True).start()
    pipe.send(None)
    for _ in commands(pipe):
        pipe.send(dict(attacker.counts))
    os._exit(0)  # threads may be in calls that take long


def _repeat(attacker: Attacker, thread: int) -> None:
    """Run rounds without end. Errors are counted, and the next round follows."""
    while True:
        try:
            attacker.attack(thread)
            attacker.counts["rounds"] += 1
        except Exception as error:  # noqa: BLE001 - the attack continues after any error
            attacker.counts[type(error).__name__] += 1
            time.sleep(_ERROR_PAUSE_SECONDS)


def check_health(pipe: Connection, target: str) -> None:
    """Send a health check every 20 ms. Every second command ends the checks, and replies with the longest answer.

    Health checks are answered on the server's event loop and need no token, so the longest answer is the longest stall
    of the loop that a caller sees.
    """
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS, wait_for_ready=True)
        received = commands(pipe)
        for _ in received:
            pipe.send(None)
            longest, answered = 0.0, 0
            while not pipe.poll():
                began = time.perf_counter()
                with suppress(grpc.RpcError):
                    stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS)
                    answered += 1
                seconds = time.perf_counter() - began
                longest = max(longest, seconds)
                pipe.poll(max(0.0, _HEALTH_SECONDS - seconds))
            next(received, None)
            with suppress(OSError):  # the benchmark has ended
                pipe.send((longest, answered))
