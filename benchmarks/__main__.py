"""The command: `python -m benchmarks [bar|programs|publish]`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
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
    plot,
    program_sessions,
    programs,
    publish,
    report,
    throughput,
)
from benchmarks.fleet.replay import replay
from benchmarks.machine import Bystanders, describe
from benchmarks.servers import connected

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.records import Findings

_PROGRAMS = (
    programs.programs,
    program_sessions.tenants_of_a_program,
    program_sessions.transports_of_a_program,
    program_sessions.mix_with_a_program,
    first_use.first_use,
)
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
    *_PROGRAMS,
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
_RESULTS = Path(__file__).with_name("results")


def run(parts: tuple[Callable[..., Findings], ...]) -> report.Report:
    """Run the parts one after the other, each with its own server."""
    found = report.Report(describe(), time.strftime("%Y-%m-%d %H:%M"))
    for part in parts:
        started, bystanders = time.monotonic(), Bystanders()
        with connected() as (server, client):
            findings = part(server, client)
        found.add(part.__name__, findings, time.monotonic() - started, bystanders.share())
        print(f"{part.__name__}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run benchmarks, or publish their results."
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=("bar", "programs", "publish"),
        help="bar: the bar alone, saves nothing; programs: its lines about programs, saved in results/programs; "
        "publish: write the latest results into docs/performance.md and README.md; by default, run everything",
    )
    part = parser.parse_args(arguments).part
    if part == "publish":
        publish.publish(report.load_latest(_RESULTS), Path(__file__).parents[1])
        return
    found = run({"bar": _BAR, "programs": _PROGRAMS, None: _BAR + _REST}[part])
    report.show(found)
    name = f"{found.machine.slug}-{found.started[:10]}.json"
    if part == "programs":
        report.save(found, _RESULTS / "programs" / name)
    elif part is None:
        report.save(found, _RESULTS / name)
        plot.draw(found, (_RESULTS / name).with_suffix(".png"))


if __name__ == "__main__":
    main(sys.argv[1:])
