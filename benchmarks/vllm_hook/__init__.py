"""Measurements of the hook in a real vLLM; `python -m benchmarks.hooks` runs them."""
