"""Source lines of shipped functions, which tracebacks of a worker show."""

from __future__ import annotations

import linecache
from contextlib import contextmanager
from typing import TYPE_CHECKING

import orjson

from logitport.payload.source_lines import SourcePart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class ShownSource:
    """The lines of one processor. Another one in the same worker may have a file of the same name."""

    def __init__(self, parts: Sequence[SourcePart] = ()) -> None:
        self._lines: dict[str, list[str]] = {}
        for part in parts:
            lines = self._lines.setdefault(part.file, [])
            text = part.text.splitlines(keepends=True)
            # A line's number is chosen by the sender. No file that fits into a payload has more lines.
            if part.first_line + len(text) > _MAX_LINES:
                continue
            lines += [""] * (part.first_line - 1 + len(text) - len(lines))
            lines[part.first_line - 1 : part.first_line - 1 + len(text)] = text

    @classmethod
    def decode(cls, column: bytes | memoryview) -> ShownSource:
        """Read the column that `encode` made."""
        return cls([SourcePart(*part) for part in orjson.loads(column)] if len(column) else ())

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Let tracebacks that are formatted inside show the lines. They are text: nothing compiles them."""
        before = {name: linecache.cache.get(name) for name in self._lines}
        for name, lines in self._lines.items():
            # Without a time of modification, the file is not looked for.
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
        try:
            yield
        finally:
            for name, entry in before.items():
                if entry is None:
                    linecache.cache.pop(name, None)
                else:
                    linecache.cache[name] = entry


# Of a file; a list of this length takes a megabyte.
_MAX_LINES = 100_000


def encode(parts: Sequence[SourcePart]) -> bytes:
    """Make the column of a `LoadProcessor` message."""
    return orjson.dumps([list(part) for part in parts]) if parts else b""
