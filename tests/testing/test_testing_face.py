"""The public names of `logitport_testing`, and what its import loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

import logitport_testing


def loaded_by(code: str) -> set[str]:
    """The modules that a new interpreter has after this code."""
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules, sep='\\n')"]
    return {*subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout.split()}


def test_the_public_names() -> None:
    for name in logitport_testing.__all__:
        assert getattr(logitport_testing, name) is not None
    with pytest.raises(AttributeError, match="module 'logitport_testing' has no attribute 'Nothing'"):
        _ = logitport_testing.Nothing  # type: ignore[attr-defined]


def test_the_plugin_of_pytest_loads_only_itself() -> None:
    """Pytest imports it in each run, whether a test needs it or not."""
    loaded = loaded_by("import logitport_testing.pytest_plugin")
    assert {name for name in loaded if name.startswith("logitport_testing.")} == {"logitport_testing.pytest_plugin"}
    assert not {"hypothesis", "logitport_server"} & loaded


@pytest.mark.slow
def test_a_simulation_needs_no_hypothesis() -> None:
    loaded = loaded_by("from logitport_testing import ToyModel, simulate; simulate([], ToyModel(8), steps=1)")
    assert "logitport_testing.simulating.stepper" in loaded
    assert "hypothesis" not in loaded
