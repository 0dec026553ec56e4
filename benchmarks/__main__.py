"""The command: `python -m benchmarks [bar|publish]`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from benchmarks import axes, bar, costs, isolation, principals, programs, publish, report, step, suite, throughput
from benchmarks.fleet import replay
from benchmarks.records import Records
from benchmarks.servers import connected

_BAR = (
    bar.pipelined,
    bar.not_overlapped,
    bar.histories,
    bar.logits_reading,
    bar.half_of_the_rows,
    bar.round_trips,
    costs.engine_thread,
    isolation.isolation,
    isolation.trust_domains,
    programs.programs,
    programs.tenants_of_a_program,
    programs.transports_of_a_program,
    programs.mix_with_a_program,
    isolation.hangs,
    costs.server_cpu,
    costs.server_memory,
    replay,
    throughput.row_steps,
    principals.principals,
)
_AXES = (axes.forward_passes, axes.axes, axes.engines)


def _with_server(part: Callable[..., Records]) -> Records:
    with connected() as (server, client):
        yield from part(server, client)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run benchmarks, or publish their results."
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=("bar", "publish"),
        help="bar: the bar alone, saves nothing; "
        "publish: write the latest results into benchmarks/RESULTS.md and README.md; by default, run everything",
    )
    part = parser.parse_args().part
    if part == "publish":
        found = report.load(suite.RESULTS)[0]
        step.draw(found, suite.ROOT / step.PICTURE)
        publish.write(step.texts(found), suite.ROOT)
        return
    chosen = _BAR if part == "bar" else _BAR + _AXES
    found = suite.run({each.__name__: partial(_with_server, each) for each in chosen})
    if part is None:
        report.save(found, suite.RESULTS)


if __name__ == "__main__":
    main()
