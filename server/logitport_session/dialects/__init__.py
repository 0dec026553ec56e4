"""How processors are called: one file or folder per dialect, all behind the interface `Dialect`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from logitport import dialects
from logitport.errors import PayloadError
from logitport_session.dialects.base import Dialect, RequestContext

__all__ = ["Dialect", "RequestContext", "make_dialect"]

# Imported on first use: most dialects need torch, which a worker may lack.
_DIALECTS = {
    dialects.EDITS: "edits.EditDialect",
    dialects.SGLANG: "sglang.SGLangDialect",
    dialects.TRANSFORMERS: "transformers.dialect.TransformersDialect",
    dialects.DYNAMO: "dynamo.DynamoDialect",
    dialects.VLLM_V1: "vllm.v1.VllmV1Dialect",
    dialects.VLLM_REQUEST: "vllm.request.VllmRequestDialect",
    dialects.VLLM_V2: "vllm.v2.VllmV2Dialect",
}


def make_dialect(processor: Any, name: str, *, shipped: bool) -> Dialect:
    """Create the dialect of a processor, ready to call an instance of it.

    Args:
        processor: a class, instance or function that `logitport.dialects.recognise` accepts.
        name: the processor's name in messages.
        shipped: whether a client sent the processor's code.

    Raises:
        PayloadError: creating the instance raised, or the server has no such dialect.
    """
    inner, dialect = dialects.recognise(processor)
    if dialect not in _DIALECTS:
        known = ", ".join(sorted(_DIALECTS))
        raise PayloadError(f"processor {name} has the unknown dialect {dialect!r}; supported: {known}")
    module, _, class_name = _DIALECTS[dialect].rpartition(".")
    dialect_class: type[Dialect] = getattr(import_module(f"{__name__}.{module}"), class_name)
    return dialect_class(inner, name, shipped=shipped)
