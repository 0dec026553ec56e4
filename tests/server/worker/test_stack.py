"""Stacks that workers write, and the source lines in their tracebacks."""

from __future__ import annotations

import linecache
import traceback
from typing import Any

import pytest

from logitport.payload.source_lines import SourcePart
from logitport_server.worker.shown_source import ShownSource, encode
from logitport_server.worker.stack import StackFrame, formatted, frames_in, is_complete, of_processor

STACK = b"""Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/re/__init__.py", line 166 in match
  File "my.py", line 8 in helper
  File "my.py", line 5 in edit
  File "/srv/logitport_server/dialects/edits.py", line 88 in edit
  File "/srv/logitport_server/worker/call_loop.py", line 240 in _edit
  File "<frozen runpy>", line 88 in _run_code
"""
FRAMES = [
    StackFrame("/usr/lib/python3.11/re/__init__.py", 166, "match"),
    StackFrame("my.py", 8, "helper"),
    StackFrame("my.py", 5, "edit"),
]


def test_the_frames_of_a_processor() -> None:
    assert frames_in(STACK) == FRAMES
    assert str(of_processor(FRAMES)) == "line 8 of my.py, in helper"
    assert of_processor(FRAMES[:1]) == FRAMES[0]


def test_source_lines_where_they_are_known() -> None:
    source = [SourcePart("other.py", 1, "x\n" * 9), SourcePart("my.py", 4, "def edit(self):\n    self.helper()\n")]
    assert formatted(FRAMES[1:], source).splitlines()[1:] == [
        '  File "my.py", line 5, in edit',
        "    self.helper()",
        '  File "my.py", line 8, in helper',
    ]
    assert formatted([], source) == ""


def test_the_end_of_a_stack() -> None:
    end = STACK.index(b'  File "<frozen')
    assert is_complete(STACK)
    assert is_complete(STACK[:end])
    assert not is_complete(STACK[: end - 1])
    assert is_complete(b'  File "my.py", line 3 in deep\n' * 100 + b"  ...\n")


def test_a_worker_that_is_not_in_a_processor() -> None:
    assert frames_in(STACK[STACK.index(b'  File "/srv') :]) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 100,
        b'  File "my.py", line 3 in \x1b[2Jedit\n',
        b'  File "my.py", line 99999999999 in edit\n',
        b'  File "' + b"a" * 400 + b'", line 3 in edit\n',
        b'File "my.py", line 3 in edit\n',
    ],
)
def test_what_is_no_frame(data: bytes) -> None:
    assert frames_in(data) == []


def test_the_number_of_frames_has_a_limit() -> None:
    assert len(frames_in(b'  File "my.py", line 3 in edit\n' * 1000)) == 20


def traceback_with(source: ShownSource, name: str = "theirs.py") -> str:
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

    assert "raise ValueError  # here\n" in traceback_with(source)
    assert "theirs.py" not in linecache.cache
    assert "# here" not in traceback_with(ShownSource())


def test_two_processors_may_have_files_of_one_name() -> None:
    first, second = (
        ShownSource([SourcePart("theirs.py", 4, f"  of the {number}\n")]) for number in ("first", "second")
    )
    with first.shown():
        assert "of the second" in traceback_with(second)
        assert linecache.getline("theirs.py", 4) == "  of the first\n"


def test_numbers_of_lines_are_limited() -> None:
    assert "x" not in linecache.cache
    with ShownSource([SourcePart("x", (1 << 31) - 1, "text")]).shown():
        assert linecache.getlines("x") == []
