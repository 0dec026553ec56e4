"""Builds and runs the machines: `python -m tests.machine [NAME …]`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from tests.machine import archive, debian, report, virtual_machine
from tests.machine.debian import RELEASE
from tests.machine.scenarios import SCENARIOS

_FOLDER = archive.ROOT / ".machine"
_SECONDS = 600.0  # of one machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.machine", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--select", metavar="EXPRESSION", help="only tests whose names it selects, as `pytest -k`")
    parser.add_argument("--only", metavar="RUN", help="only this run of each machine, such as unit")
    parser.add_argument("--keep-wheels", action="store_true", help="use the wheels of the last run")
    parser.add_argument("--save", action="store_true", help="keep the results in tests/machine/results.json")
    options = parser.parse_args()
    if unknown := {*options.names} - SCENARIOS.keys():
        parser.error(f"there is no machine {', '.join(sorted(unknown))}")
    boots = debian.prepare(_FOLDER)
    if not options.keep_wheels:
        archive.build_wheels(_FOLDER / "wheels")
        archive.install(boots[RELEASE].tree, _FOLDER / "wheels")
    found = []
    for name in options.names or SCENARIOS:
        scenario, folder = SCENARIOS[name], _FOLDER / name
        plan = {**scenario.plan, "patience": virtual_machine.patience()}
        if options.only:
            plan["runs"] = {run: each for run, each in plan["runs"].items() if run == options.only}
        if options.select:
            plan["runs"] = {
                run: {**each, "arguments": [*each["arguments"], "-k", options.select]}
                for run, each in plan["runs"].items()
            }
        sent = _FOLDER / f"{name}.tar"
        archive.write(sent, boots[RELEASE].tree, plan)
        began = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        virtual_machine.run(boots[scenario.kernel], scenario.size, sent, folder, _SECONDS * virtual_machine.patience())
        found.append(report.read(name, scenario, folder, time.monotonic() - began))
        print(report.line(found[-1]), flush=True)
    if options.save:
        report.save(found)
    if not all(each.passed for each in found):
        sys.exit("make machine: tests have failed")


if __name__ == "__main__":
    main()
