"""Fixtures: an authority, and the record of figures that tests measure.

Figures are printed at the end. In a JUnit report, they are properties of their test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(_FIGURES, []):
        terminalreporter.write_line(line)
