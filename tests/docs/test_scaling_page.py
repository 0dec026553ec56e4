"""docs/scaling.md shows the latest committed results, which the simulation still gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.fleet_sim import capacity, publish, results, scenarios

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
MEASURED, SIMULATED = results.load()
AGAIN = "run `make bench-scaling`"


def test_the_page_has_the_latest_results() -> None:
    shown = dict(re.findall(r"<!-- ([\w-]+):begin -->\n(.*?)<!-- \1:end -->", PAGE, re.DOTALL))
    assert shown == publish.texts(MEASURED, SIMULATED), AGAIN


def test_the_picture_is_committed() -> None:
    assert (ROOT / publish.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_every_command_is_a_target_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`|\()make ([a-z][a-z-]+)", PAGE, re.MULTILINE):
        assert f"\n{target}:" in makefile, target


def test_the_simulation_gives_the_stored_results() -> None:
    """A change of the client's choice, or of a limit, must reach the page."""
    assert scenarios.steady(MEASURED.costs, 100) == pytest.approx(SIMULATED.steady[0]), AGAIN
    (stored,) = [
        each for each in SIMULATED.losses if (each.case, each.engines, each.history) == ("one server", 100, 4096)
    ]
    found = scenarios.loss(MEASURED.costs, "one server", 100)[1]
    assert found[1:] == pytest.approx(stored[1:]), AGAIN


def test_a_cell_is_below_the_limits() -> None:
    (cell,) = [each for each in capacity.directories(MEASURED.costs) if each.engines == scenarios.CELL]
    assert cell.dns_bytes <= capacity.UDP_BYTES
    assert cell.engines <= capacity.MAX_CONNECTIONS


def test_the_limits_of_lists_are_those_of_the_page() -> None:
    assert f"more than {capacity.MAX_RECORDS // 10 * 10} servers" in PAGE
    assert f"for {capacity.max_addresses() // 1000 * 1000:,} addresses" in PAGE
