"""Payload arguments of commands."""

from __future__ import annotations

import sys
from pathlib import Path

from logitport_server.config import StartupError


def read_payload(path: str) -> str:
    """Return the text of the file, or of stdin for "-". Raises StartupError."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read a payload from {path}: {error}") from error
