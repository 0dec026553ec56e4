"""The choice between the compiled core and pure Python."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument
from logitport.core import compiled

if TYPE_CHECKING:
    from pathlib import Path

PRINT = "from logitport.core import compiled; print(compiled.NAME, compiled.describe(), sep='|')"
# The start of a session, and of a server.
WARN = PRINT + "; compiled.warn_if_missing(); compiled.warn_if_missing()"
needs_core = pytest.mark.skipif(compiled.core is None, reason=f"the compiled core does not run: {compiled.REASON}")


def choose(code: str = PRINT, **variables: str) -> tuple[str, str]:
    """Import the package in a process of its own; return its output and its errors."""
    environment = {name: value for name, value in os.environ.items() if name != compiled.VARIABLE} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip(), done.stderr.strip()


def replaced_core(folder: Path, content: str) -> str:
    """Make a `logitport_core` that is found before the installed one; return its folder."""
    package = folder / "logitport_core"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_core.py").write_text(content)
    return str(folder)


@pytest.mark.slow
@needs_core
@pytest.mark.parametrize("variables", [{}, {compiled.VARIABLE: "0"}, {compiled.VARIABLE: ""}])
def test_an_installed_core_is_used(variables: dict[str, str]) -> None:
    output, errors = choose(**variables)
    assert output.startswith("compiled|compiled, /")
    assert not errors


@pytest.mark.slow
def test_the_variable_chooses_python() -> None:
    assert choose(**{compiled.VARIABLE: "1"}) == (f"python|pure Python: {compiled.VARIABLE} is 1", "")


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "yes")
    with pytest.raises(InvalidArgument, match="is 'yes'; set it to 1"):
        compiled.load()


@pytest.mark.slow
def test_a_platform_without_a_core_is_no_warning() -> None:
    hidden = "import sys; sys.modules['logitport_core'] = None; sys.platform = 'darwin'; "
    assert choose(hidden + WARN) == ("python|pure Python: the compiled core is for Linux, and this is darwin", "")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("INTERFACE = -1", f"the compiled core has interface -1, and this logitport needs {compiled.INTERFACE}"),
        ("", f"the compiled core has interface None, and this logitport needs {compiled.INTERFACE}"),
        ("raise ImportError('no such symbol')", "the compiled core cannot be loaded (no such symbol)"),
        ("import missing", "the compiled core cannot be loaded (No module named 'missing')"),
    ],
)
@pytest.mark.slow
def test_a_core_that_does_not_fit_is_left_out_with_one_warning(tmp_path: Path, content: str, problem: str) -> None:
    """The import itself writes nothing: a server's log may be JSON, and is configured after it."""
    output, errors = choose(WARN, PYTHONPATH=replaced_core(tmp_path, content))
    assert output == f"python|pure Python: {problem}"
    assert errors.startswith(f"{problem}. logitport runs in pure Python: a step takes up to 30 times")
    assert errors.count("\n") == 0
    assert not choose(PYTHONPATH=str(tmp_path))[1]


@pytest.mark.parametrize("built", [True, False], ids=["for another Python", "not at all"])
@pytest.mark.slow
def test_a_core_that_was_not_built_is_one_warning(tmp_path: Path, built: bool) -> None:
    folder = replaced_core(tmp_path, "")
    package = tmp_path / "logitport_core"
    if built:
        (package / "_core.py").rename(package / "_core.cpython-27-nowhere.so")
        problem = f"there is no compiled core for Python {sys.version_info[0]}.{sys.version_info[1]} on this platform"
    else:
        (package / "_core.py").unlink()
        (package / "not_built.txt").write_text("at its installation there was no C++ compiler")
        problem = "there is no compiled core: at its installation there was no C++ compiler"
    output, errors = choose(WARN, PYTHONPATH=folder)
    assert output == f"python|pure Python: {problem}"
    assert errors.startswith(f"{problem}. logitport runs in pure Python: ")


def test_a_child_process_gets_the_same_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "1")
    assert compiled.environment() == {compiled.VARIABLE: "1"}
    monkeypatch.delenv(compiled.VARIABLE)
    assert compiled.environment() == {}
