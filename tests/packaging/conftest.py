"""The sdists and the wheel, built once for all tests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Distributions(NamedTuple):
    """Paths of the sdist and the wheel, and of the compiled core's sdist."""

    sdist: Path
    wheel: Path
    core: Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The distributions that `make dist` builds and checks."""
    folder: Path = tmp_path_factory.mktemp("dist")
    kept = folder / "wheel of the compiled core, of `make wheels`"
    kept.touch()
    done = subprocess.run(["make", "dist", f"DIST={folder}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 3
    assert kept.exists()
    (sdist,), (wheel,), (core,) = (
        folder.glob(f"logitport{rest}") for rest in ("-*.tar.gz", "-*.whl", "_core-*.tar.gz")
    )
    return Distributions(sdist, wheel, core)
