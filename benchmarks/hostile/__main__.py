"""The command: `python -m benchmarks.hostile`, and `python -m benchmarks.hostile publish`.

With default options it saves its results; with others it prints them only, unless `--save` is given.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

from benchmarks import publish, suite
from benchmarks.hostile import report
from benchmarks.hostile.attackers import ATTACKERS
from benchmarks.hostile.blocks import compare
from benchmarks.hostile.report import FULL, Plan
from benchmarks.machine import describe
from benchmarks.report import save

_TRANSPORTS = ("local", "grpc")
_RESULTS = suite.RESULTS / "hostile"


def main() -> None:
    options = _parse()
    if options.command == "publish":
        publish.write(report.texts(_RESULTS), suite.ROOT)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers, too
    plan = Plan(options.blocks, options.steps, options.least_seconds, options.seconds)
    found = report.HostileReport(describe(), time.strftime("%Y-%m-%d %H:%M"), plan=plan)
    for comparison in compare(options.attackers, options.transport, plan):
        found.comparisons.append(comparison)
        print(report.line(comparison), file=sys.stderr, flush=True)
    print(report.table(found, found.comparisons))
    if options.save or len(sys.argv) == 1:
        save(found, _RESULTS)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["run", "publish", "list"], default="run")
    parser.add_argument("--blocks", type=int, default=FULL.blocks, help="blocks alone and attacked")
    parser.add_argument("--steps", type=int, default=FULL.steps, help="steps of a block")
    parser.add_argument(
        "--least-seconds", type=float, default=FULL.least_seconds, help="a faster block goes on until then"
    )
    parser.add_argument("--seconds", type=float, default=FULL.seconds, help="when a slower block ends")
    parser.add_argument(
        "--attackers", nargs="+", default=list(ATTACKERS), metavar="NAME", help="names or parts of them"
    )
    parser.add_argument("--transport", nargs="+", choices=_TRANSPORTS, default=list(_TRANSPORTS))
    parser.add_argument("--save", action="store_true", help="save the results of a run with options")
    options = parser.parse_args()
    options.attackers = [name for name in ATTACKERS if any(part in name for part in options.attackers)]
    if options.command == "list":
        sys.exit("\n".join(f"{name}: {attacker.does}" for name, attacker in ATTACKERS.items()))
    return options


if __name__ == "__main__":
    main()
