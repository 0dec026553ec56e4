"""The processes beside the innocent engine: the attacker, and health checks. Each runs as a `Helper`."""

from __future__ import annotations

import os
import threading
import time
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


class _Checks:
    """Health checks in a thread, one after the other."""

    def __init__(self, stub: health_pb2_grpc.HealthStub) -> None:
        self._stub = stub
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest, self.answered = 0.0, 0
        self._thread.start()

    def stop(self) -> None:
        """Wait for the answer of the last check."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.perf_counter()
            try:
                self._stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS)
                self.answered += 1
            except grpc.RpcError:
                pass
            seconds = time.perf_counter() - began
            self.longest = max(self.longest, seconds)
            self._stopped.wait(max(0.0, _HEALTH_SECONDS - seconds))


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
            checks = _Checks(stub)
            pipe.send(None)
            next(received, None)
            checks.stop()
            pipe.send((checks.longest, checks.answered))
