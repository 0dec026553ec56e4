"""How a processor is called: one file a dialect, one seam (`Dialect`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.processors import EditProcessor
from logitport_server.dialects.base import Dialect, RequestContext
from logitport_server.dialects.edits import EditDialect
from logitport_server.dialects.sglang import SGLangDialect

if TYPE_CHECKING:
    from logitport.processors import CustomLogitProcessor

__all__ = ["Dialect", "RequestContext", "speak"]


def speak(processor: CustomLogitProcessor, name: str, *, shipped: bool) -> Dialect:
    """The dialect of a processor's base class, ready to call it.

    A subclass of a logits-free processor that overrides `__call__`, as SGLang's users do, is called as SGLang calls it.
    """
    if isinstance(processor, EditProcessor) and type(processor).__call__ is EditProcessor.__call__:
        return EditDialect(processor, name, shipped=shipped)
    return SGLangDialect(processor, name, shipped=shipped)
