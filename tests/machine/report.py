"""What ran in the machines, from the reports of pytest: tests/machine/results.json, which the docs cite."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from tests.machine.archive import ROOT
from tests.machine.virtual_machine import has_kvm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.machine.scenarios import Scenario

RESULTS = ROOT / "tests/machine/results.json"


class Result(NamedTuple):
    """One machine that ran.

    Attributes:
        facts: kernel, systemd and times, as the machine has found them.
        outcomes: of each test, by run: passed, failed or skipped.
        values: what tests have recorded, by run and test.
        seconds: from the start of the machine to its end.
    """

    name: str
    facts: dict[str, Any]
    outcomes: dict[str, dict[str, str]]
    values: dict[str, dict[str, dict[str, str]]]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether each run has run tests, and none has failed."""
        every = [outcome for tests in self.outcomes.values() for outcome in tests.values()]
        return bool(every) and all(self.outcomes.values()) and "failed" not in every


def read(name: str, scenario: Scenario, folder: Path, seconds: float) -> Result:
    """Read the results of a machine."""
    facts = {"cores": scenario.size.cores, "memory_mib": scenario.size.memory_mib, "read_only": scenario.read_only}
    facts |= json.loads((folder / "facts.json").read_text())
    outcomes: dict[str, dict[str, str]] = {}
    values: dict[str, dict[str, dict[str, str]]] = {}
    for path in sorted(folder.glob("*.xml")):
        run = outcomes.setdefault(path.stem, {})
        if not path.stat().st_size:
            continue  # pytest has not ended by itself
        for case in ElementTree.parse(path).iter("testcase"):
            test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            kinds = {child.tag for child in case}
            run[test] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            recorded = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
            if recorded:
                values.setdefault(path.stem, {})[test] = recorded
    return Result(name, facts, outcomes, values, round(seconds, 1))


def line(result: Result) -> str:
    """The result in one line."""
    every = [outcome for tests in result.outcomes.values() for outcome in tests.values()]
    counts = ", ".join(f"{every.count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))
    return f"machine {result.name}: Linux {result.facts['kernel']}, {counts}, {result.seconds:.0f} s"


def save(results: Sequence[Result]) -> None:
    """Write the results. Runs that did not run this time keep those that they had."""
    machines = json.loads(RESULTS.read_text())["machines"] if RESULTS.exists() else {}
    for result in results:
        kept = machines.setdefault(result.name, {"outcomes": {}, "values": {}})
        kept |= {"facts": result.facts, "seconds": result.seconds, "date": time.strftime("%Y-%m-%d")}
        kept["outcomes"] |= result.outcomes
        kept["values"] |= result.values
    RESULTS.write_text(json.dumps({"kvm": has_kvm(), "machines": machines}, indent=1, sort_keys=True) + "\n")
