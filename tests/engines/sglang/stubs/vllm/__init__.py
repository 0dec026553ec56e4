"""A stub of vLLM, from which SGLang imports one operator on a CPU without its own kernels."""
