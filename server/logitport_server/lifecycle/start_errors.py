"""Errors of the configuration."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class StartupError(Exception):
    """The configuration does not work on this machine. The message says what to change."""


class UsageError(StartupError):
    """A command was called in a wrong way, or its configuration file is invalid. The command ends with status 2."""


def proposal(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" if one of the known words is similar, otherwise ""."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""
