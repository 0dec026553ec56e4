"""README.md: its example runs, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_it_fits_in_two_screens() -> None:
    assert len(README.splitlines()) <= 100


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands(target: str) -> None:
    assert f"\nmake {target} " in README
    assert f"\n{target}: " in (ROOT / "Makefile").read_text()


def test_the_twenty_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    made: dict[str, Any] = {"__name__": "readme"}
    exec(program, made)
    made["client"].close()
    applied = capsys.readouterr().out
    assert "'no_repeat_ngram': 1" in applied
    assert "Temperature" in applied
