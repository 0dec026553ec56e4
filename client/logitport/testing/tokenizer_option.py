"""The argument `tokenizer` as an option of `logitport serve`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike


def with_tokenizer(
    path: str | PathLike[str], name: str, options: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """Return the tokenizer's name, and the options with the tokenizer. Raises InvalidArgument."""
    if "tokenizer" in (options or {}):
        raise InvalidArgument("tokenizer is given, and options has a tokenizer, too: leave one of them out")
    name = name or os.fspath(path).replace("=", "_")
    return name, {**(options or {}), "tokenizer": [f"{name}={os.fspath(path)}"]}
