"""What the docs say of virtual machines and containers is what `make machine` and `make image` have seen."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MACHINES = json.loads((ROOT / "tests/machine/results.json").read_text())["machines"]
IMAGE = json.loads((ROOT / "tests/machine/image.json").read_text())


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def recorded(machine: str, name: str) -> list[str]:
    """The values of a name that tests of a machine have recorded."""
    return [
        values[name] for tests in MACHINES[machine]["values"].values() for values in tests.values() if name in values
    ]


def test_nothing_has_failed() -> None:
    outcomes = [
        outcome for machine in MACHINES.values() for tests in machine["outcomes"].values() for outcome in tests.values()
    ]
    assert outcomes.count("passed") > 10
    assert "failed" not in outcomes


def test_the_kernels_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| Linux (\S+), of Debian \d+ \((\w+)\) \| (\w+)", page("security.md"), re.MULTILINE)
    assert {release for _, release, _ in rows} == {*MACHINES} - {"small"}
    for kernel, release, landlock in rows:
        facts = MACHINES[release]["facts"]
        assert facts["kernel"].startswith(f"{kernel}.")
        assert landlock == ("no" if facts["landlock"] == 0 else str(facts["landlock"]))


def test_the_exposure_is_that_of_the_running_unit() -> None:
    stated = re.search(r"`systemd-analyze security` rates its exposure ([\d.]+) of 10", page("operating.md"))
    assert stated
    assert {*map(float, recorded("bookworm", "exposure"))} == {float(stated[1])}


def test_the_image_is_that_of_the_page() -> None:
    stated = re.search(r"about ([\d.]+) GB\. Its server", page("operating.md"))
    assert stated
    assert round(IMAGE["bytes"] / 1e9, 1) == float(stated[1])
    peak = re.search(r"It took up to (\d+) MB", page("operating.md"))
    assert peak
    assert max(run["peak_mb"] for run in IMAGE["runs"].values()) <= int(peak[1])
