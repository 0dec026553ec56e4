"""Stub of vLLM's package of this name."""

from .vllm import VllmConfig

__all__ = ["VllmConfig"]
