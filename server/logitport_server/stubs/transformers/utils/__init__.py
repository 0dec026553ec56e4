"""Stands for transformers' package of this name: what its processors are decorated with."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., object]")


def add_start_docstrings(*docstrings: str) -> Callable[[_Function], _Function]:
    """Give a function these docstrings before its own."""

    def decorate(function: _Function) -> _Function:
        function.__doc__ = "".join(docstrings) + (function.__doc__ or "")
        return function

    return decorate
