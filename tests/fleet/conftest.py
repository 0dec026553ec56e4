"""Figures that the tests measure: they are printed at the end, and are properties of a JUnit report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def figure(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str, float], None]:
    """Records a figure: its name with the unit, and its value."""

    def record(name: str, value: float) -> None:
        record_property(name, value)
        request.config.stash.setdefault(_FIGURES, []).append(f"{name}: {value:.3g}")

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(_FIGURES, []):
        terminalreporter.write_line(line)
