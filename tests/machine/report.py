"""What ran in the machines, from the reports of pytest: tests/machine/results.json, which the docs cite."""

from __future__ import annotations

import json
import re
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
    found = folder / "facts.json"
    facts |= json.loads(found.read_text()) if found.exists() else {}  # the machine has not ended by itself
    outcomes: dict[str, dict[str, str]] = {}
    values: dict[str, dict[str, dict[str, str]]] = {}
    for path in sorted(folder.glob("*.xml")):
        if not path.stat().st_size:
            continue  # pytest has not ended by itself
        run = outcomes.setdefault(path.stem, {})
        for case in ElementTree.parse(path).iter("testcase"):
            test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            kinds = {child.tag for child in case}
            run[test] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            recorded = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
            if recorded:
                values.setdefault(path.stem, {})[test] = recorded
    for run in scenario.runs.keys() - outcomes.keys():
        if tests := _of_the_console((folder / "console").read_text(errors="replace"), run):
            outcomes[run] = tests
    return Result(name, facts, outcomes, values, round(seconds, 1))


def _of_the_console(text: str, run: str) -> dict[str, str]:
    """The outcomes that a run of pytest has printed, if the machine was ended before the report of the run.

    Lines of the kernel may be between a name and its outcome.
    """
    _, _, printed = text.partition(f"== {run}\n" if f"== {run}\n" in text else f"== {run}\r\n")
    printed = printed.partition("\n== ")[0]
    parts = re.split(r"^tests/\S*?/(\w+)\.py::(\S+) ", printed, flags=re.MULTILINE)[1:]
    found = {}
    for file, test, rest in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if outcome := re.search(
            r"\b(PASSED|FAILED|ERROR|SKIPPED)\b", re.sub(r"\x1b\[[\d;]*m", " ", _without_units(rest))
        ):
            found[f"{file}::{test}"] = {"ERROR": "failed"}.get(outcome[1], outcome[1].lower())
    return found


def _without_units(text: str) -> str:
    """The text without the lines of systemd on units that have failed."""
    return re.sub(r"\[\S*FAILED\S*\] [^\n]*", "", text)


def line(result: Result) -> str:
    """The result in one line."""
    every = [outcome for tests in result.outcomes.values() for outcome in tests.values()]
    counts = ", ".join(f"{every.count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))
    return f"machine {result.name}: Linux {result.facts.get('kernel')}, {counts}, {result.seconds:.0f} s"


def save(results: Sequence[Result]) -> None:
    """Write the results. Tests that did not run this time keep those that they had."""
    machines = json.loads(RESULTS.read_text())["machines"] if RESULTS.exists() else {}
    for result in results:
        kept = machines.setdefault(result.name, {"outcomes": {}, "values": {}})
        kept["facts"] = kept.get("facts", {}) | result.facts
        kept |= {"seconds": result.seconds, "date": time.strftime("%Y-%m-%d")}
        for name, found in (("outcomes", result.outcomes), ("values", result.values)):
            for run, tests in found.items():
                kept[name][run] = kept[name].get(run, {}) | tests
    RESULTS.write_text(json.dumps({"kvm": has_kvm(), "machines": machines}, indent=1, sort_keys=True) + "\n")
