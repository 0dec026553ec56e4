"""Stands for transformers' package of this name: its base classes, and none of the processors that it brings."""

from .generation import LogitsProcessor, LogitsProcessorList, LogitsWarper
from .generation.logits_process import __getattr__ as __getattr__

__all__ = ["LogitsProcessor", "LogitsProcessorList", "LogitsWarper"]
