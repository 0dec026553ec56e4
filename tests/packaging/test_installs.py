"""Installations that compile the core, that cannot, and with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.core.conftest import can_build
from tests.packaging.bare_environment import TEST_SECONDS, Environment
from tests.packaging.test_extras import WITH_TORCH

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.conftest import Distributions

pytestmark = pytest.mark.timeout(TEST_SECONDS)


@pytest.mark.skipif(not can_build(), reason="the compiled core cannot be built here")
def test_an_install_compiles_the_core(distributions: Distributions, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(str(distributions.sdist))
    environment.python("from logitport.core import compiled; assert compiled.NAME == 'compiled', compiled.describe()")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CXX": "/nowhere/c++"}, "at its installation, CXX was '/nowhere/c++', which is no command"),
        ({"CXX": "", "PATH": "/nowhere"}, "at its installation there was no C++ compiler (Debian: g++)"),
    ],
)
def test_an_install_without_a_compiler_is_pure_python(
    distributions: Distributions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    reason: str,
) -> None:
    environment = Environment(tmp_path / "venv")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment.install(str(distributions.sdist))
    described = environment.python("from logitport.core import compiled; print(compiled.describe())")
    assert described == f"pure Python: there is no compiled core: {reason}\n"


def test_the_extras_with_torch(distributions: Distributions, tmp_path: Path) -> None:
    """torch comes first and alone: with other packages, pip could choose another build."""
    environment = Environment(tmp_path / "venv")
    environment.install("torch")
    for extra, code in WITH_TORCH.items():
        environment.install(f"{distributions.wheel}[{extra}]")
        environment.python(code)
