"""Tests that are coroutine functions."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


def given(test: Callable[..., Coroutine[Any, Any, None]], run: Callable[..., Any], count: int) -> Callable[..., None]:
    """Make a test of `run`, a coroutine function that calls `test` and passes its first arguments: no fixtures."""
    signature = inspect.signature(test)
    wrapped = on_loop(functools.wraps(test)(run))
    wrapped.__signature__ = signature.replace(parameters=[*signature.parameters.values()][count:])  # type: ignore[attr-defined]
    return wrapped
