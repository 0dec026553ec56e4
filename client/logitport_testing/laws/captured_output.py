"""Captures what processors print."""

from __future__ import annotations

import io
from contextlib import ExitStack, redirect_stderr, redirect_stdout

_MAX_CHARACTERS = 2000


class CapturedOutput(io.TextIOBase):
    """Captures sys.stdout and sys.stderr as a context manager, and keeps the last 2,000 characters."""

    def __init__(self) -> None:
        super().__init__()
        self._text = ""
        self._dropped = False
        self._redirections = ExitStack()

    def __enter__(self) -> CapturedOutput:
        self._redirections.enter_context(redirect_stdout(self))
        self._redirections.enter_context(redirect_stderr(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._redirections.close()

    def writable(self) -> bool:
        """Whether it can be written to: always."""
        return True

    def write(self, text: str) -> int:
        """Keep the end of the text."""
        kept = self._text + text
        self._dropped |= len(kept) > _MAX_CHARACTERS
        self._text = kept[-_MAX_CHARACTERS:]
        return len(text)

    def clear(self) -> None:
        """Forget the text so far."""
        self._text, self._dropped = "", False

    @property
    def text(self) -> str:
        """The end of the text, from the begin of a line."""
        if not self._dropped:
            return self._text
        return "...\n" + (self._text.partition("\n")[2] or self._text)
