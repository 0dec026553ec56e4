"""Which tests are skipped where an optional package is missing."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from logitport.errors import NotInstalled
from tests import missing_packages
from tests.missing_packages import missing_package


def caused_by(cause: Exception) -> Exception:
    error = NotInstalled("install it")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "package"),
    [
        (ModuleNotFoundError(name="torch"), "torch"),
        (ModuleNotFoundError(name="torch.fx"), "torch"),
        (caused_by(ModuleNotFoundError(name="torch")), "torch"),
        (ModuleNotFoundError(name="logitport.missing"), None),
        (ImportError("no name"), None),
        (ValueError("torch"), None),
    ],
)
def test_a_missing_package(monkeypatch: pytest.MonkeyPatch, error: Exception, package: str | None) -> None:
    monkeypatch.setattr(missing_packages, "MISSING", {"torch"})
    assert missing_package(error) == package


def test_a_package_that_a_test_hides_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError) as raised:
        import_module("torch")
    assert missing_package(raised.value) is None
