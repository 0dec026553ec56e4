"""A keyword that a call does not take is told with the one that was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")


def checks_keywords(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have a call with a keyword that `function` does not take raise a TypeError that says which it takes."""
    *_, called = function.__qualname__.removesuffix(".__init__").split(".")
    taken = [name for name in inspect.signature(function).parameters if name != "self"]
    known = frozenset(taken)

    @functools.wraps(function)
    def call(*args: _P.args, **keywords: _P.kwargs) -> _T:
        if not keywords.keys() <= known:
            raise TypeError(_told(called, next(name for name in keywords if name not in known), taken))
        return function(*args, **keywords)

    return call


def checks_fields(cls: type[_T]) -> type[_T]:
    """`checks_keywords` for what makes an instance of a dataclass."""
    made: Any = cls
    made.__init__ = checks_keywords(made.__init__)
    return cls


def _told(called: str, wrong: str, taken: list[str]) -> str:
    near = difflib.get_close_matches(wrong, taken, 1)
    meant = f"; write {near[0]}" if near else ""
    return f"{called}() takes no {wrong!r}{meant}: it takes {', '.join(taken)}"
