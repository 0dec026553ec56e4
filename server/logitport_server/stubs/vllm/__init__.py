"""Stands for vLLM's package of this name: what a logits processor may touch, and no engine."""

from .sampling_params import SamplingParams

__all__ = ["SamplingParams"]
