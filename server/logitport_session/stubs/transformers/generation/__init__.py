"""Stub of transformers' package of this name."""

from .logits_process import LogitsProcessor, LogitsProcessorList, LogitsWarper
from .logits_process import __getattr__ as __getattr__

__all__ = ["LogitsProcessor", "LogitsProcessorList", "LogitsWarper"]
