"""The default bound of whitespace in JSON. Without one, a small model may write newlines until its limit."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = ("whitespace_flexible", "whitespace_pattern")

# Two line breaks at most, and 40 blanks before and after them: enough for JSON with indentation.
_PATTERN = r"[ \t]{0,40}((\r?\n){1,2}[ \t]{0,40})?"
_BOUND: Mapping[str, Any] = MappingProxyType({"whitespace_pattern": _PATTERN})

# llguidance before 1.8 matches the pattern again and again at one position, so that it bounds nothing. vLLM requires
# such a version. There, whitespace is part of the separators, and not allowed next to braces and brackets.
_BOUND_BEFORE_1_8: Mapping[str, Any] = MappingProxyType(
    {"whitespace_flexible": False, "item_separator": f",{_PATTERN}", "key_separator": f":{_PATTERN}"}
)


@lru_cache(maxsize=1)
def bound() -> Mapping[str, Any]:
    """Return the options of llguidance that bound whitespace, for the installed version."""
    try:
        major, minor = version("llguidance").split(".")[:2]
    except PackageNotFoundError:  # the processor reports that it is missing
        return _BOUND
    return _BOUND if (int(major), int(minor)) >= (1, 8) else _BOUND_BEFORE_1_8
