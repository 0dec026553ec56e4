"""The command: `python -m benchmarks.fleet` runs everything and saves it in results/fleet.

`python -m benchmarks.fleet publish` writes the latest results into docs/performance.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from benchmarks import report
from benchmarks.fleet import publish
from benchmarks.fleet.balanced import steps
from benchmarks.fleet.more_servers import more_servers
from benchmarks.fleet.replay import replay
from benchmarks.machine import Bystanders, describe

_RESULTS = Path(__file__).parents[1] / "results" / "fleet"


def run() -> report.Report:
    """Run the parts one after the other."""
    found = report.Report(describe(), time.strftime("%Y-%m-%d %H:%M"))
    for part in (steps, replay, more_servers):
        started, bystanders = time.monotonic(), Bystanders()
        findings = part()
        found.add(part.__name__, findings, time.monotonic() - started, bystanders.share())
        print(f"{part.__name__}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["run", "publish"], default="run")
    if parser.parse_args().command == "publish":
        publish.publish(_RESULTS, Path(__file__).parents[2])
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers, too
    found = run()
    print(publish.table(found), publish.conditions(found), sep="\n")
    report.save(found, _RESULTS / f"{found.machine.slug}-{found.started[:10]}.json")


if __name__ == "__main__":
    main()
