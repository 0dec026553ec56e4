"""Skips tests that need a package that some environments lack, with the package as the reason. A plugin of pytest."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# Those of extras. Without another package, tests fail: `make test` installs all that it needs.
OPTIONAL = frozenset(
    {"cosmic_ray", "grafana_foundation_sdk", "kubernetes_validate", "llguidance", "nanobind", "playwright", "redis"}
    | {"tokenizers", "torch", "transformers", "triton", "xgrammar", "yaml"}
)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # hidden by an import hook
        return False


# Found before any test runs, because tests hide packages that are installed.
MISSING = frozenset(package for package in OPTIONAL if not _is_installed(package))


def missing_package(error: BaseException | None) -> str | None:
    """Return the missing package that an error, or one of its causes, names; None if there is none."""
    while error is not None:
        if isinstance(error, ImportError) and (package := (error.name or "").partition(".")[0]) in MISSING:
            return package
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file or a folder which cannot be imported without the package."""
    report = yield
    call = getattr(report, "call", None)
    if report.outcome == "failed" and call and (package := missing_package(call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: {package} is not installed")
        del report.call  # pytest would report the error
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test which comes to an import of the package."""
    report = yield
    if report.failed and call.excinfo and (package := missing_package(call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {package} is not installed")
    return report
