"""Lists the fast test files that take much processor time at the end of a run of fast tests. A plugin of pytest.

Processor time, unlike wall time, hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# For all tests of a file with their fixtures, child processes that have ended included.
LIMIT_SECONDS = 2.0

_used_before = 0.0
_by_file: defaultdict[str, float] = defaultdict(float)


def _used() -> float:
    """Return the seconds of this process and of its child processes that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leave out the time of imports and of the collection."""
    global _used_before  # noqa: PLW0603 - a plugin has one run
    _used_before = _used()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seconds since the last report to this one; pytest-xdist sends them to the process that prints."""
    global _used_before  # noqa: PLW0603
    report = yield
    now = _used()
    report.processor_seconds = now - _used_before  # type: ignore[attr-defined]
    _used_before = now
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _by_file[report.nodeid.split("::")[0]] += getattr(report, "processor_seconds", 0.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the total, and the files above the limit."""
    if "not slow" not in config.option.markexpr:
        return
    terminalreporter.write_line(f"{sum(_by_file.values()):.0f} s of processor time in tests, without imports")
    for seconds, name in sorted(((seconds, name) for name, seconds in _by_file.items()), reverse=True):
        if seconds > LIMIT_SECONDS:
            terminalreporter.write_line(f"{name} takes {seconds:.1f} s: see tests/tiers.py")
