"""Finds methods whose names are near misses of a hook: they would have no effect."""

from __future__ import annotations

import inspect
import warnings
from difflib import get_close_matches
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from logitport.errors import ProcessorWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIMILARITY = 0.85  # of difflib: `starts` and `advence` are similar, `state` and `restart` are not


def warn_of_near_misses(cls: type, base: type, hooks: Sequence[str], stacklevel: int) -> None:
    """Warn of each public method that looks like a misspelled hook.

    It does if its name is similar to a hook's which the class does not override, it takes as many arguments as
    the hook, and no method of the class uses its name.

    Args:
        cls: the new class.
        base: the class with the hooks, an ancestor.
        hooks: the names of the hooks that need not be overridden.
        stacklevel: as for `warnings.warn`, from the caller of this function.
    """
    own = [one for one in cls.__mro__ if one not in base.__mro__]
    free = [name for name in hooks if not any(name in vars(one) for one in own)]
    for name, member in vars(cls).items():
        if name.startswith("_") or hasattr(base, name) or isinstance(member, property) or _function(member) is None:
            continue
        near = _near(name, free)
        if not near or _arguments(member) != _arguments(inspect.getattr_static(base, near)) or name in _used_names(own):
            continue
        warnings.warn(
            f"{cls.__qualname__}.{name} is no hook, and is never called: rename it to {near}, or, if it is a helper, "
            "give it another name, such as one that begins with _",
            ProcessorWarning,
            stacklevel=stacklevel + 1,
        )


def _near(name: str, hooks: Sequence[str]) -> str:
    """The hook that the name is similar to, or ""."""
    swapped = [hook for hook in hooks if sorted(hook) == sorted(name)]  # `strat`
    found = swapped or get_close_matches(name.lower(), hooks, 1, _SIMILARITY)
    return found[0] if found else ""


def _arguments(member: object) -> int:
    """The number of positional arguments of a call of a method."""
    function = _function(member)
    assert function is not None  # noqa: S101 - of hooks, and of members that were checked
    return function.__code__.co_argcount - (not isinstance(member, staticmethod))


def _function(member: object) -> FunctionType | None:
    """The function of a method, class method, static method or property; None if it is something else."""
    function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
    return function if isinstance(function, FunctionType) else None


def _used_names(classes: Sequence[type]) -> set[str]:
    functions = [_function(member) for cls in classes for member in vars(cls).values()]
    return set().union(*(names_used(function.__code__) for function in functions if function is not None))


def names_used(code: CodeType) -> set[str]:
    """Names of variables and attributes in code and in the functions inside it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(names_used, inner))
