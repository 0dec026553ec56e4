"""How a processor is called: one file a dialect, one seam (`Dialect`)."""

from __future__ import annotations

from typing import Any

from logitport import dialects
from logitport.errors import LoadFailed
from logitport_server.dialects.base import Dialect, RequestContext
from logitport_server.dialects.edits import EditDialect
from logitport_server.dialects.sglang import SGLangDialect

__all__ = ["Dialect", "RequestContext", "speak"]


_SPOKEN: dict[str, type[Dialect]] = {dialects.EDITS: EditDialect, dialects.SGLANG: SGLangDialect}


def speak(processor: Any, name: str, *, shipped: bool) -> Dialect:
    """The dialect of a processor, ready to call an instance of it.

    Args:
        processor: what `logitport.dialects.recognise` takes.
        name: a built-in's name, or a digest.
        shipped: whether a client sent the processor's code.

    Raises:
        LoadFailed: creating the instance raised, or it is of a dialect that is not spoken here.
    """
    inner, dialect = dialects.recognise(processor)
    if dialect not in _SPOKEN:
        raise LoadFailed(f"processor {name} is of the dialect {dialect!r}; there are {', '.join(sorted(_SPOKEN))}")
    return _SPOKEN[dialect](inner, name, shipped=shipped)
