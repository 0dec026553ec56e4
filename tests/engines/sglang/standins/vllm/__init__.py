"""Stands in for the vLLM that SGLang takes one operator from on a CPU without its own kernels."""
