"""The tokenizer of recorded sessions: a recording has only its name."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from logitport.recording.events import SessionOpened

_NAME = "recorded"  # of the tokenizer of sessions that name none


def session_tokenizers(sessions: Iterable[SessionOpened], path: Path | None) -> dict[str, Path]:
    """Return the file of each name that the sessions, after `with_tokenizer`, have; {} without a file.

    Args:
        sessions: the recorded sessions.
        path: a tokenizer.json, or a folder with one; None for none.
    """
    return {} if path is None else {with_tokenizer(opened).tokenizer_id: path for opened in sessions}


def with_tokenizer(opened: SessionOpened) -> SessionOpened:
    """Return a session that names a tokenizer: its own, or else one for all that name none."""
    return opened if opened.tokenizer_id else replace(opened, tokenizer_id=_NAME)
