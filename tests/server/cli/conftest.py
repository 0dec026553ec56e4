"""Runs commands in this process, and compares what they print with stored files."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from logitport_server.cli.root import run
from logitport_server.lifecycle import time_slice
from logitport_server.processes import single

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STORED = Path(__file__).parent / "printed"
# Set it to write the files again.
_UPDATE = "UPDATE_PRINTED"

# Patterns of text that differs from run to run, and their replacements. Times come after addresses and digests.
_VOLATILE = (
    (r"127\.0\.0\.1:1\b", "HOST:CLOSED"),
    (r"127\.0\.0\.1:\d+", "HOST:PORT"),
    (r"\b[0-9a-f]{64}\b", "DIGEST"),
    (r"sha256:[0-9a-f]{12}\b", "sha256:DIGEST12"),
    (r"\b[0-9a-f]{32}\b", "SESSION"),
    (r"\b[0-9a-f]{12}\b", "HEX12"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "DATE UTC"),
    (r"\b\d+\.\d+\.\d+(\+\w+)?\b", "VERSION"),
    (r"\b3\.\d\d\b", "3.X"),
    (r">?\b\d+(\.\d+)?(e[-+]?\d+)?(ms|us)\b", "TIME"),
    (r"\b(\d+d)?(\d+h)?(\d+m)?(\d+s)\b", "TIME"),
    (r"\b\d+(\.\d+)?(KiB|MiB|B)\b", "SIZE"),
    (r"\b\d+(\.\d+)?%", "PERCENT"),
)


class Ended(NamedTuple):
    """How a command has ended, and what it has printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def unchanged_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of this process, which other tests inherit, when it runs `serve`."""
    monkeypatch.setattr(time_slice, "shorten", lambda: None)
    monkeypatch.setattr(single, "prevent_core_files", lambda: None)


@pytest.fixture
def logitport(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ended]]:
    """Runs a command in this process."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")  # `serve` sets it for its whole process
    modules = set(sys.modules)

    def run_to_end(*arguments: object) -> Ended:
        status: int | str | None = 0
        try:
            run([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code or 0
        out, err = capsys.readouterr()
        if isinstance(status, str):  # Python prints the text, and exits with 1
            status, err = 1, f"{err}{status}\n"
        return Ended(status, out, err)

    yield run_to_end
    for name in set(sys.modules) - modules:  # those of files with processors
        if getattr(sys.modules[name], "__file__", None) and "pytest-of-" in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def is_stored() -> Callable[..., None]:
    """Compares printed text with a stored file."""

    def compare(name: str, text: str, *more: tuple[str, str]) -> None:
        """Replace what differs from run to run, and compare; `more` are (pattern, replacement) pairs."""
        for pattern, replacement in (*_VOLATILE, *more):
            text = re.sub(pattern, replacement, text)
        text = re.sub(r" {2,}", "  ", text)  # the widths depend on what was replaced
        path = _STORED / f"{name}.txt"
        if _UPDATE in os.environ:
            path.write_text(text)
        assert text == path.read_text(), f"if the change is wanted, write the files again: {_UPDATE}=1 pytest"

    return compare
