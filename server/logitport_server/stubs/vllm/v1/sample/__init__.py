"""Stands for vLLM's package of this name."""
