"""A process that sends a health check every 20 ms: `python -m benchmarks.hostile.health TARGET`.

Health checks are answered on the server's event loop and need no token, so the longest answer is the longest stall of
the loop that a caller sees. `start` begins, `stop` ends and replies with the longest answer.
"""

from __future__ import annotations

import sys
import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.hostile.helper import commands, reply

_PERIOD_SECONDS = 0.02
_TIMEOUT_SECONDS = 30.0


class Checks:
    """Health checks in a thread, one after the other."""

    def __init__(self, stub: health_pb2_grpc.HealthStub) -> None:
        self._stub = stub
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest, self.answered, self.failed = 0.0, 0, 0
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
                self.failed += 1
            seconds = time.perf_counter() - began
            self.longest = max(self.longest, seconds)
            self._stopped.wait(max(0.0, _PERIOD_SECONDS - seconds))


def main() -> None:
    with grpc.insecure_channel(sys.argv[1]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS, wait_for_ready=True)
        for command in commands():
            if command["do"] == "start":
                checks = Checks(stub)
                reply()
            else:
                checks.stop()
                reply(longest=checks.longest, answered=checks.answered, failed=checks.failed)


if __name__ == "__main__":
    main()
