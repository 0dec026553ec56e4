"""Names that processors are given: namespace/name[:tag]."""

from __future__ import annotations

import re

from logitport.errors import InvalidArgument

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)+(:[a-z0-9][a-z0-9._-]*)?")
_MAX_LENGTH = 128


def check_name(name: str) -> None:
    """Raise InvalidArgument if this is no name for a processor. Names of installed ones have no namespace."""
    if not (len(name) <= _MAX_LENGTH and _NAME.fullmatch(name)):
        raise InvalidArgument(
            f"{name!r} is not namespace/name[:tag] of at most {_MAX_LENGTH} characters a-z 0-9 . _ -; "
            "write, for example, team/ban-french:v2"
        )
