"""What the commands of all benchmarks do: run parts in turn, show and save the results, or publish the latest ones."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import publish, report
from benchmarks.machine import Bystanders, Machine, describe
from benchmarks.records import Records
from benchmarks.report import Report

RESULTS = Path(__file__).with_name("results")
ROOT = Path(__file__).parents[1]
# Above this share of processor time, other processes are reported.
_QUIET = 0.05


def run(parts: Mapping[str, Callable[[], Records]], machine: Machine | None = None) -> Report:
    """Run the parts one after the other, and measure the load of other processes."""
    found = report.Report(machine or describe(), time.strftime("%Y-%m-%d %H:%M"))
    for name, part in parts.items():
        started, bystanders = time.monotonic(), Bystanders()
        found.add(part())
        share = bystanders.share()
        found.bystanders[name] = share
        busy = f"; others used {share:.0%} of the processors' time: run it again alone" if share > _QUIET else ""
        print(f"{name}: {time.monotonic() - started:.0f} s{busy}", file=sys.stderr, flush=True)
    print(publish.text(found))
    return found


def main(module: str, description: str | None, folder: str, run: Callable[[], Report]) -> None:
    """Run the command `python -m benchmarks.MODULE [run|publish]`.

    Args:
        module: name of the command's module.
        description: of the command.
        folder: where results are, below results/; also the name of the markers.
        run: measures.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)
    parser.add_argument("command", nargs="?", choices=["run", "publish"], default="run")
    if parser.parse_args().command == "publish":
        publish.write({folder: publish.text(report.load(RESULTS / folder)[0])}, ROOT)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers, too
    report.save(run(), RESULTS / folder)
