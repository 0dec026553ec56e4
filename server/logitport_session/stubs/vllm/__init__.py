"""Stub of vLLM's package of this name: the names that a logits processor may use, without the engine."""

from .sampling_params import SamplingParams

__all__ = ["SamplingParams"]
