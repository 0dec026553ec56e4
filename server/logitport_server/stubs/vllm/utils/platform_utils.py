"""Stub of vLLM's module of this name."""


def is_pin_memory_available() -> bool:
    """Whether host memory can be pinned; False, because there may be no GPU."""
    return False
