"""Stub of transformers' package of this name: its base classes, without its processors."""

from .generation import LogitsProcessor, LogitsProcessorList, LogitsWarper
from .generation.logits_process import __getattr__ as __getattr__

__all__ = ["LogitsProcessor", "LogitsProcessorList", "LogitsWarper"]
