"""Payload arguments of commands."""

from __future__ import annotations

import sys
from pathlib import Path

from logitport.payload import seal_program
from logitport_server.config import StartupError

# Field 1 of the message Program, which canonical bytes begin with. No text begins with it.
_PROGRAM_BEGINS = b"\x08"


def read_payload(path: str) -> str:
    """Return the text of the file, or of stdin for "-"; the canonical bytes of a program as text. Raises StartupError."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return seal_program(content, "") if content.startswith(_PROGRAM_BEGINS) else content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read a payload from {path}: {error}") from error
