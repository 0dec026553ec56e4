"""Time of traces in a step: `python -m benchmarks.traces`. It writes JSON, and the table of docs/performance.md.

Steps alternate between a server without traces and another one, so that other work on the machine slows both down
alike. Two at a time: with more, those in the middle of the order find colder caches. A second server without traces
shows the error of the measurement. A process that discards what it gets stands in for the collector.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import timeit
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from benchmarks.contestants import Service, close_all
from benchmarks.machine import Bystanders, describe
from benchmarks.measure import LOWER_QUARTILE, ROUNDS, race
from benchmarks.servers import connected
from benchmarks.workloads import Workload
from logitport_server import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport import Client

RESULTS = Path(__file__).parent / "results" / "traces"
_STEPS = 300
_ON = {"OTEL_TRACES_EXPORTER": "otlp"}
_CASES = {
    "off, another server": {},
    "on, one of a thousand steps": _ON,
    "on, 1 % of the steps": {**_ON, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
    "on, all steps": {**_ON, "OTEL_TRACES_SAMPLER": "always_on"},
}
_SINK = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def _collector() -> Iterator[str]:
    """Run a process that discards spans. Yields its URL."""
    with subprocess.Popen([sys.executable, "-c", _SINK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


def measure() -> dict[str, Any]:
    """Run the benchmark."""
    bystanders = Bystanders()
    workload = Workload()
    with ExitStack() as stack:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = stack.enter_context(_collector())
        _, client = stack.enter_context(connected("--device", "cpu"))
        cases = {name: _compare(client, workload, variables) for name, variables in _CASES.items()}
    tracing.use(None)
    check = timeit.timeit("samples_step()", globals={"samples_step": tracing.samples_step}, number=1_000_000)
    return {
        "machine": describe().described,
        "date": time.strftime("%Y-%m-%d"),
        "others": round(bystanders.share(), 2),
        "steps": _STEPS * ROUNDS,
        "check_ns": round(check * 1e3),
        "cases": cases,
    }


def _compare(client: Client, workload: Workload, variables: dict[str, str]) -> dict[str, float]:
    """Compare a server with these variables with the client's server, which has no traces."""
    with patch.dict(os.environ, variables), connected("--device", "cpu") as (_, other):
        contestants = [Service(client, workload, "local"), Service(other, workload, "local")]
        contestants[0].name = "off"
        contestants[1].name = "other"
        raced = race(contestants, workload, lambda: None, steps=_STEPS)
        close_all(contestants)
    off, on = (np.quantile(raced[name].blocking, LOWER_QUARTILE, axis=1) for name in ("off", "other"))
    return {
        "off_microseconds": round(float(np.median(off) * 1e6), 1),
        "microseconds": round(float(np.median(on) * 1e6), 1),
        "ratio": round(float(np.median(on / off)), 3),
        "low": round(float((on / off).min()), 3),
        "high": round(float((on / off).max()), 3),
    }


def table(results: dict[str, Any]) -> str:
    """The table of docs/performance.md."""
    lines = ["| traces | step | off | ÷ off | spread |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, case in results["cases"].items():
        spread = f"{case['low']:.2f} to {case['high']:.2f}"
        times = f"{case['microseconds']:.0f} µs | {case['off_microseconds']:.0f} µs"
        lines.append(f"| {name} | {times} | {case['ratio']:.2f} | {spread} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, store and print."""
    results = measure()
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{describe().slug}-{results['date']}.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(path, results["machine"], f"others: {results['others']:.0%}, check: {results['check_ns']} ns", sep="\n")
    print(table(results))


if __name__ == "__main__":
    main()
