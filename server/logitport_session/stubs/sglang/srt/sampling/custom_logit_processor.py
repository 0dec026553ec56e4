"""Stub of SGLang's module of this name: its base class and its processors."""

from typing import Any

from logitport.payload.wire_names import class_of


def __getattr__(name: str) -> Any:
    found = class_of(__name__, name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; SGLang is not installed here")
    return found
