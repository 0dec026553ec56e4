"""How processors are called: one file or folder per dialect, all behind the interface `Dialect`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from logitport import dialects
from logitport.errors import PayloadError
from logitport.system.installation import has_torch, how_to_install
from logitport_session.dialects.base import Dialect, RequestContext

__all__ = ["Dialect", "RequestContext", "check_torch", "make_dialect"]

# Imported on first use: all but the first one need torch, which a server or a worker may lack.
_DIALECTS = {
    dialects.EDITS: "edit_dialect.EditDialect",
    dialects.SGLANG: "sglang.SGLangDialect",
    dialects.TRANSFORMERS: "transformers.dialect.TransformersDialect",
    dialects.DYNAMO: "dynamo.DynamoDialect",
    dialects.VLLM_V1: "vllm.v1.VllmV1Dialect",
    dialects.VLLM_REQUEST: "vllm.request_dialect.VllmRequestDialect",
    dialects.VLLM_V2: "vllm.v2.VllmV2Dialect",
}


def make_dialect(processor: Any, name: str, *, shipped: bool) -> Dialect:
    """Create the dialect of a processor, ready to call an instance of it.

    Args:
        processor: a class, instance or function that `logitport.dialects.recognise` accepts.
        name: the processor's name in messages.
        shipped: whether a client sent the processor's code.

    Raises:
        PayloadError: creating the instance raised, or the server has no such dialect, or lacks torch for it.
    """
    inner, dialect = dialects.recognise(processor)
    if dialect not in _DIALECTS:
        known = ", ".join(sorted(_DIALECTS))
        raise PayloadError(f"processor {name} has the unknown dialect {dialect!r}; supported: {known}")
    if dialect != dialects.EDITS:
        check_torch(name)
    module, _, class_name = _DIALECTS[dialect].rpartition(".")
    dialect_class: type[Dialect] = getattr(import_module(f"{__name__}.{module}"), class_name)
    return dialect_class(inner, name, shipped=shipped)


def check_torch(name: str) -> None:
    """Check that this Python has torch, which a processor that reads logits needs. Raises PayloadError."""
    if not has_torch():
        raise PayloadError(
            f"processor {name} is code that reads logits, and the Python that would run it has no torch: install it, "
            f"{how_to_install('server', 'torch')}, or derive the processor from EditProcessor"
        )
