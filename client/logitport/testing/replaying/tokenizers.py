"""The tokenizer of recorded sessions: a recording has only its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_proto.processing_pb2 import OpenSession

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NAME = "recorded"  # of the tokenizer of sessions that name none


def session_tokenizers(sessions: Iterable[OpenSession], path: Path | None) -> dict[str, Path]:
    """Return the file of each name that the sessions, after `with_tokenizer`, have; {} without a file.

    Args:
        sessions: the recorded sessions.
        path: a tokenizer.json, or a folder with one; None for none.
    """
    return {} if path is None else {with_tokenizer(opening).tokenizer_id: path for opening in sessions}


def with_tokenizer(opening: OpenSession) -> OpenSession:
    """Return a session that names a tokenizer: its own, or else one for all that name none."""
    named = OpenSession(tokenizer_id=_NAME)
    named.MergeFrom(opening)
    return named
