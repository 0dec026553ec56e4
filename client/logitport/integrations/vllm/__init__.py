"""logitport in an unmodified vLLM: `LLM(logits_processors=["logitport.integrations.vllm:RemoteLogitsProcessor"])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.integrations.vllm.middleware import Middleware

if TYPE_CHECKING:
    from logitport.integrations.vllm.processor import RemoteLogitsProcessor

__all__ = ["Middleware", "RemoteLogitsProcessor"]


def __getattr__(name: str) -> Any:
    """Import the processor lazily: it derives from vLLM's classes, which the middleware does not need."""
    if name == "RemoteLogitsProcessor":
        from logitport.integrations.vllm.processor import RemoteLogitsProcessor

        return RemoteLogitsProcessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
