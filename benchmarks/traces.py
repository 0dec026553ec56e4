"""Time of traces in a step: `python -m benchmarks.traces`, and `publish` for the table of benchmarks/RESULTS.md.

Steps alternate between a server without traces and another one, so that other work on the machine slows both down
alike. Two at a time: with more, those in the middle of the order find colder caches. A second server without traces
shows the error of the measurement. A process that discards what it gets stands in for the collector.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

from benchmarks import forwards, suite
from benchmarks.contestants import Service, close_all
from benchmarks.measure import LOWER_QUARTILE, race
from benchmarks.records import BarLine, ratios
from benchmarks.report import Report
from benchmarks.servers import connected
from benchmarks.workloads import Workload
from logitport import Client

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


def run() -> Report:
    """Compare a server without traces with each other one."""
    with ExitStack() as stack:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = stack.enter_context(_collector())
        _, client = stack.enter_context(connected("--device", "cpu"))
        parts = {name: partial(_compare, name, client, variables) for name, variables in _CASES.items()}
        return suite.run(parts)


def _compare(name: str, client: Client, variables: dict[str, str]) -> Iterator[BarLine]:
    """Compare a server with these variables with the client's server, which has no traces."""
    workload = Workload()
    with patch.dict(os.environ, variables), connected("--device", "cpu") as (_, other):
        contestants = [Service(client, workload, "local", name="off"), Service(other, workload, "local", name=name)]
        raced = race(contestants, workload, forwards.none, steps=_STEPS)
        close_all(contestants)
    return ratios("a step, traces ", raced, "off", {name: None}, quantile=LOWER_QUARTILE)


if __name__ == "__main__":
    suite.main("traces", __doc__, "traces", run)
