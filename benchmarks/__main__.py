"""The command: `python -m benchmarks [bar|publish]`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import (
    axes,
    bar,
    costs,
    domains,
    engine_thread,
    engines,
    first_use,
    isolation,
    misbehaviour,
    overlap,
    program_sessions,
    programs,
    publish,
    report,
    suite,
    throughput,
)
from benchmarks.fleet.replay import replay
from benchmarks.servers import connected

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.records import Findings

_BAR = (
    bar.pipelined,
    bar.not_overlapped,
    bar.histories,
    bar.logits_reading,
    bar.half_of_the_rows,
    bar.round_trips,
    engine_thread.engine_thread,
    isolation.isolation,
    domains.trust_domains,
    programs.programs,
    program_sessions.tenants_of_a_program,
    program_sessions.transports_of_a_program,
    program_sessions.mix_with_a_program,
    first_use.first_use,
    misbehaviour.hangs,
    costs.server_cpu,
    costs.server_memory,
    replay,
    throughput.row_steps,
)
_REST = (
    overlap.few_ids,
    overlap.whole_rows,
    axes.processor,
    axes.rows,
    axes.history,
    axes.vocabulary,
    axes.dtype,
    axes.distinct_processors,
    engines.engines,
)


def _with_server(part: Callable[..., Findings]) -> Findings:
    with connected() as (server, client):
        return part(server, client)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run benchmarks, or publish their results."
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=("bar", "publish"),
        help="bar: the bar alone, saves nothing; "
        "publish: write the latest results into docs/performance.md and README.md; by default, run everything",
    )
    part = parser.parse_args().part
    if part == "publish":
        publish.publish(report.load_latest(suite.RESULTS), suite.ROOT)
        return
    parts = _BAR if part == "bar" else _BAR + _REST
    found = suite.run({each.__name__: partial(_with_server, each) for each in parts})
    report.show(found)
    if part is None:
        report.save(found, suite.RESULTS)


if __name__ == "__main__":
    main()
