"""Fixtures: an authority, and the record of figures that tests measure.

Figures are printed at the end. In a JUnit report, they are properties of their test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.certificates import Authority
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.end_to_end.engines import Engine

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Authority trusted by the tests."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def figure(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str, float], None]:
    """Records a figure: its name with the unit, and its value."""

    def record(name: str, value: float) -> None:
        record_property(name, value)
        request.config.stash.setdefault(_FIGURES, []).append(f"{name}: {value:.3g}")

    return record


def go_on(engines: Sequence[Engine], steps: int) -> None:
    """Wait until all engines, which run, have made so many more steps."""
    enough = [engine.steps + steps for engine in engines]
    wait_until(lambda: all(engine.steps >= least for engine, least in zip(engines, enough, strict=True)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(_FIGURES, []):
        terminalreporter.write_line(line)
