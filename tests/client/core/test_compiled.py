"""The choice between the compiled core and pure Python."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from logitport import History, InvalidArgument
from logitport.core import compiled

if TYPE_CHECKING:
    from pathlib import Path

PRINT = "from logitport.core import compiled; print(compiled.NAME, compiled.describe(), sep='|')"
# The start of a session, and of a server.
WARN = PRINT + "; compiled.warn_if_unfit(); compiled.warn_if_unfit()"
ADVICE = "Install the logitport-core of this version; in a clone: make core, or pip install ./core."
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


@needs_core
@pytest.mark.parametrize("variables", [{}, {compiled.VARIABLE: "0"}, {compiled.VARIABLE: ""}])
def test_an_installed_core_is_used(variables: dict[str, str]) -> None:
    output, errors = choose(**variables)
    assert output.startswith("compiled|compiled, /")
    assert not errors


def test_the_variable_chooses_python() -> None:
    assert choose(**{compiled.VARIABLE: "1"}) == (f"python|pure Python: {compiled.VARIABLE} is 1", "")


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "yes")
    with pytest.raises(InvalidArgument, match="is 'yes'; set it to 1"):
        compiled.load()


def test_without_a_core_python_runs_without_a_warning() -> None:
    hidden = "import sys; sys.modules['logitport_core'] = None; "  # as if it were not installed
    assert choose(hidden + PRINT) == ("python|pure Python: logitport-core is not installed", "")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("INTERFACE = -1", f"logitport-core has interface -1, and this logitport needs {compiled.INTERFACE}"),
        ("", f"logitport-core has interface None, and this logitport needs {compiled.INTERFACE}"),
        ("raise ImportError('no such symbol')", "logitport-core cannot be imported (no such symbol)"),
        ("import missing", "logitport-core cannot be imported (No module named 'missing')"),
    ],
)
def test_a_core_that_does_not_fit_is_left_out_with_one_warning(tmp_path: Path, content: str, problem: str) -> None:
    output, errors = choose(WARN, PYTHONPATH=replaced_core(tmp_path, content))
    assert output == f"python|pure Python: {problem}"
    assert errors == f"{problem}; logitport runs in pure Python. {ADVICE}"


def test_an_import_writes_nothing(tmp_path: Path) -> None:
    """A server's log may be JSON, and is configured after the import."""
    assert choose(PYTHONPATH=replaced_core(tmp_path, "INTERFACE = -1"))[1] == ""


def test_a_core_of_another_python_is_named(tmp_path: Path) -> None:
    folder = replaced_core(tmp_path, "")
    (tmp_path / "logitport_core" / "_core.py").rename(tmp_path / "logitport_core" / "_core.cpython-27-nowhere.so")
    output, errors = choose(WARN, PYTHONPATH=folder)
    python = ".".join(platform.python_version_tuple()[:2])
    problem = f"{folder}/logitport_core has no module for Python {python} on this platform"
    assert output == f"python|pure Python: {problem}"
    assert errors == f"{problem}; logitport runs in pure Python. {ADVICE}"


def test_a_missing_core_is_no_warning() -> None:
    hidden = "import sys; sys.modules['logitport_core'] = None; "
    assert choose(hidden + WARN)[1] == ""


def test_a_child_process_gets_the_same_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.VARIABLE, "1")
    assert compiled.environment() == {compiled.VARIABLE: "1"}
    monkeypatch.delenv(compiled.VARIABLE)
    assert compiled.environment() == {}


@needs_core
def test_errors_of_the_core_are_those_of_the_package() -> None:
    with pytest.raises(InvalidArgument, match=r"^cannot rewind a history of 0 ids to 1: "):
        History().rewind(1)
