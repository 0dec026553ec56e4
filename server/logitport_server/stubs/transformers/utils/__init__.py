"""Stub of transformers' package of this name: the decorator of its processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., object]")


def add_start_docstrings(*docstrings: str) -> Callable[[_Function], _Function]:
    """Prepend these docstrings to the docstring of a function."""

    def decorate(function: _Function) -> _Function:
        function.__doc__ = "".join(docstrings) + (function.__doc__ or "")
        return function

    return decorate
