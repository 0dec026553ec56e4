"""The storm: engines, authors, operators, attackers and breakers at once, on real servers: `python -m tests.storm`.

Prints the seed, counts and findings. After a finding it shortens the script, and prints it; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.storm import plan
from tests.storm.run import Report, Run
from tests.storm.script import Script
from tests.storm.shrink import shrink

if TYPE_CHECKING:
    from tests.storm.judge import Record

_ATTEMPTS = 2


def main() -> int:
    options = _parse()
    signal.signal(signal.SIGTERM, _end)
    if options.script:
        script = Script.load(options.script)
    else:
        seed = time.time_ns() % 10**6 if options.seed is None else options.seed
        script = plan.draw(seed, options.minutes * 60)
        chosen = tuple(options.only or script.actors)
        script = script.with_events(event for event in script.events if event["actor"].startswith(chosen))
        print(f"seed {seed}: {len(script.events)} events of {', '.join(script.actors)}", flush=True)
        print(json.dumps(script.world), flush=True)
    if options.save:
        script.save(options.save)
    report = Run(script).run()
    print(json.dumps(dict(sorted(report.counts.items())), indent=2))
    print(f"at most: {report.peaks}")
    print(f"the control process was late by {report.worst_load:.2f} s at most")
    for finding in report.findings:
        print(f"FOUND after {finding['at'] - report.begun:.0f} s: {_text(finding)}", flush=True)
    print(f"{len(report.findings)} findings")
    if report.findings and options.shrink_minutes:
        _shorten(script, report, options)
    return 1 if report.findings else 0


def _end(number: int, _: object) -> NoReturn:
    """End as for an exception, so that the servers are stopped."""
    sys.exit(128 + number)


def _text(finding: Record) -> str:
    fields = {name: value for name, value in finding.items() if name not in ("kind", "actor", "detail", "event")}
    return f"{finding['kind']} of {finding['actor']}: {finding.get('detail', '')}\n  {fields}\n  in {finding['event']}"


def _shorten(script: Script, report: Report, options: argparse.Namespace) -> None:
    kinds = {_kind(finding) for finding in report.findings}
    if not any(kind == "leak" for kind, _ in kinds):
        script = Script({**script.world, "settle_seconds": 0}, script.events)

    def fails(shorter: Script) -> bool:
        return any(kinds & set(map(_kind, Run(shorter).run().findings)) for _ in range(_ATTEMPTS))

    until = min(finding["event"].get("at", float("inf")) for finding in report.findings)
    shortened = shrink(script, fails, options.shrink_minutes * 60, until)
    path = Path(f"storm-{script.world['seed']}.jsonl")
    shortened.save(path)
    print(f"seed {script.world['seed']}, shortened to {len(shortened.events)} events in {path}:")
    print(path.read_text() if len(shortened.events) < 200 else "")


def _kind(finding: Record) -> tuple[str, str]:
    return finding["kind"], finding.get("error") or finding.get("what", "")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, help="of the script; a new one by default")
    parser.add_argument("--only", nargs="+", metavar="ACTOR", help="actors with these names, or kinds of actors")
    parser.add_argument("--script", type=Path, help="run the script of this file")
    parser.add_argument("--save", type=Path, help="write the script to this file before it runs")
    parser.add_argument("--shrink-minutes", type=float, default=10, help="time for shortening it; 0 for none")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
