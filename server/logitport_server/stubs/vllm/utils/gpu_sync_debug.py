"""Stands for vLLM's module of this name, which watches for waits on a GPU: there is none to wait for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


def gpu_sync_allowed(first_only: bool = False) -> AbstractContextManager[None]:  # noqa: ARG001 - vLLM's
    """Waits are allowed."""
    return nullcontext()
