"""Stub of vLLM's module of this name, which detects waits for a GPU. Without a GPU there are none."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


def gpu_sync_allowed(first_only: bool = False) -> AbstractContextManager[None]:  # noqa: ARG001 - vLLM's
    """Return a context that allows waits."""
    return nullcontext()
