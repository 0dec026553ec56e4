"""What is measured beside the storm: a process that sleeps, echoes and computes, and health checks of each server."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from contextlib import suppress
from typing import Any

_PAUSE_SECONDS = 0.01
_HEALTH_SECONDS = 0.05
_REPORT_SECONDS = 0.5
_BURST_SECONDS = 0.02
_MIN_LATENESS = 0.01
_TIMEOUT_SECONDS = 30.0
HEALTH_BOUND_SECONDS = 1.0  # docs/security.md


def measure(targets: list[str], until: float, pipe: Any) -> None:
    """Send samples of lateness, and a record of each slow or failed health check, until this time."""
    lock = threading.Lock()

    def send(record: dict[str, Any]) -> None:
        with lock, suppress(BrokenPipeError):
            pipe.send(record)

    ours, theirs = socket.socketpair()
    multiprocessing.get_context("fork").Process(target=_echo, args=(theirs, ours), daemon=True).start()
    theirs.close()
    checks = [
        threading.Thread(target=_check_health, args=(*each, until, send), daemon=True) for each in enumerate(targets)
    ]
    for check in checks:
        check.start()
    samples, sent = [], time.monotonic()
    while (now := time.monotonic()) < until:
        time.sleep(_PAUSE_SECONDS)
        ours.sendall(b"x")
        ours.recv(1)
        late = time.monotonic() - now - _PAUSE_SECONDS
        if late > _MIN_LATENESS:
            samples.append((now + _PAUSE_SECONDS + late, late))
        if now > sent + _REPORT_SECONDS:
            samples.append(_burst())
            send({"kind": "lateness", "samples": samples})
            samples, sent = [], now
    send({"kind": "lateness", "samples": samples})
    for check in checks:
        check.join()


def _burst() -> tuple[float, float]:
    """Compute for a moment: a process that only sleeps is served first. Returns the time, and how late that was."""
    began, computed = time.monotonic(), time.thread_time()
    while time.thread_time() < computed + _BURST_SECONDS:
        pass
    return time.monotonic(), time.monotonic() - began - _BURST_SECONDS


def _echo(connection: socket.socket, other: socket.socket) -> None:
    other.close()
    while data := connection.recv(1):
        connection.sendall(data)


def _check_health(number: int, target: str, until: float, send: Any) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    options = [("grpc.max_reconnect_backoff_ms", 500), ("grpc.initial_reconnect_backoff_ms", 100)]
    with grpc.insecure_channel(target, options=options) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        counts = 0
        while (begun := time.monotonic()) < until:
            error = ""
            try:
                stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS)
            except grpc.RpcError as failed:
                error = f"{failed.code()}: {failed.details()}"
            now = time.monotonic()
            fields = {"actor": "health", "at": now, "begun": begun, "only": f"server-{number}", "event": {}}
            if error:
                send({"kind": "failure", "error": "HealthCheckFailed", "detail": error, "ships": False, **fields})
                time.sleep(0.3)
            elif now - begun > HEALTH_BOUND_SECONDS / 5:
                send(
                    {"kind": "wait", "what": "health", "seconds": now - begun, "bound": HEALTH_BOUND_SECONDS, **fields}
                )
            counts += 1
            time.sleep(_HEALTH_SECONDS)
        send({"kind": "counts", "actor": "health", "counts": {"health checks": counts}})
