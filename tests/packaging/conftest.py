"""The sdist and the wheel, built once for all tests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Distributions(NamedTuple):
    """Paths of the sdist, and of the wheel of pure Python."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The distributions that `make dist` builds and checks."""
    folder: Path = tmp_path_factory.mktemp("dist")
    kept = folder / "wheel with the compiled core, of `make wheels`"
    kept.touch()
    done = subprocess.run(["make", "dist", f"DIST={folder}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2
    assert kept.exists()
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Distributions(sdist, wheel)
