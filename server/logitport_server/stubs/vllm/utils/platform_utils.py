"""Stands for vLLM's module of this name."""


def is_pin_memory_available() -> bool:
    """Whether host memory can be pinned: not where there is no device."""
    return False
