"""Source lines in tracebacks of a worker."""

from __future__ import annotations

import linecache
import traceback
from typing import Any

from logitport.payload.source_lines import SourcePart
from logitport_server.worker.shown_source import ShownSource, encode


def formatted(source: ShownSource, name: str = "theirs.py") -> str:
    made: dict[str, Any] = {}
    exec(compile("\n\ndef fails():\n    raise ValueError\n", name, "exec"), made)
    try:
        made["fails"]()
    except ValueError as error:
        with source.shown():
            return "".join(traceback.format_exception(error))
    raise AssertionError


def test_lines_are_shown_and_then_forgotten() -> None:
    source = ShownSource.decode(encode([SourcePart("theirs.py", 3, "def fails():\n    raise ValueError  # here\n")]))

    assert "raise ValueError  # here\n" in formatted(source)
    assert "theirs.py" not in linecache.cache
    assert "# here" not in formatted(ShownSource())


def test_two_processors_may_have_files_of_one_name() -> None:
    first, second = (
        ShownSource([SourcePart("theirs.py", 4, f"  of the {number}\n")]) for number in ("first", "second")
    )
    with first.shown():
        assert "of the second" in formatted(second)
        assert linecache.getline("theirs.py", 4) == "  of the first\n"


def test_numbers_of_lines_are_limited() -> None:
    assert "x" not in linecache.cache
    with ShownSource([SourcePart("x", (1 << 31) - 1, "text")]).shown():
        assert linecache.getlines("x") == []
