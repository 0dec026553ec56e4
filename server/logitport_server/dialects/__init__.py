"""How a processor is called: one file or folder a dialect, one seam (`Dialect`)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from logitport import dialects
from logitport.errors import LoadFailed
from logitport_server.dialects.base import Dialect, RequestContext

__all__ = ["Dialect", "RequestContext", "make_dialect"]

# Imported when they are first spoken: most want torch, which a worker need not have.
_DIALECTS = {
    dialects.EDITS: "edits.EditDialect",
    dialects.SGLANG: "sglang.SGLangDialect",
    dialects.TRANSFORMERS: "transformers.dialect.TransformersDialect",
    dialects.VLLM_V1: "vllm.v1.VllmV1Dialect",
    dialects.VLLM_REQUEST: "vllm.request.VllmRequestDialect",
    dialects.VLLM_V2: "vllm.v2.VllmV2Dialect",
}


def make_dialect(processor: Any, name: str, *, shipped: bool) -> Dialect:
    """The dialect of a processor, ready to call an instance of it.

    Args:
        processor: what `logitport.dialects.recognise` takes.
        name: what it is called in messages.
        shipped: whether a client sent the processor's code.

    Raises:
        LoadFailed: creating the instance raised, or it is of a dialect that is not spoken here.
    """
    inner, dialect = dialects.recognise(processor)
    if dialect not in _DIALECTS:
        raise LoadFailed(f"processor {name} is of the dialect {dialect!r}; there are {', '.join(sorted(_DIALECTS))}")
    module, _, speaker = _DIALECTS[dialect].rpartition(".")
    spoken: type[Dialect] = getattr(import_module(f"{__name__}.{module}"), speaker)
    return spoken(inner, name, shipped=shipped)
