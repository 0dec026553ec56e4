"""What a processor may keep between calls: attributes, class attributes, variables of its module and its closure."""

from __future__ import annotations

import copy
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_IMMUTABLE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, property, classmethod, staticmethod)
_MAX_DEPTH = 8


def state_of(processor: object, function: Any) -> dict[str, Any]:
    """A copy of what a processor can change: by a name for messages."""
    found: dict[str, Any] = (
        {f"self.{name}": value for name, value in vars(processor).items()} if _has_vars(processor) else {}
    )
    for cls in reversed(type(processor).__mro__[:-1]):
        if cls.__module__.partition(".")[0] not in ("torch", "logitport", "abc", "typing"):
            found |= {f"{cls.__qualname__}.{name}": value for name, value in vars(cls).items() if not _is_dunder(name)}
    if isinstance(function, FunctionType):
        names = function.__code__.co_names
        found |= {name: function.__globals__[name] for name in names if name in function.__globals__}
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        found |= {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    return {name: _copied(value) for name, value in found.items() if not isinstance(value, _IMMUTABLE)}


def difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """The name of something that differs; None if nothing does."""
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or not _same(before[name], after[name], 0):
            return name
    return None


def _same(one: Any, other: Any, depth: int) -> bool:
    if type(one) is not type(other):
        return False
    if one is other or depth > _MAX_DEPTH or isinstance(one, _IMMUTABLE):
        return True
    if isinstance(one, torch.Tensor):
        return (
            one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
        )
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key], depth + 1) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same(*pair, depth + 1) for pair in zip(one, other, strict=True))
    if _has_vars(one):
        return _same(vars(one), vars(other), depth + 1)
    if getattr(type(one), "__eq__", None) is object.__eq__:  # opaque
        return True
    try:
        return bool(one == other or one != one)  # noqa: PLR0124 - NaN
    except Exception:  # noqa: BLE001 - third-party code may raise anything
        return False


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - what cannot be copied is compared by its identity
        return value


def _has_vars(value: object) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, _IMMUTABLE)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") or name in ("_abc_impl", "_is_protocol", "_is_runtime_protocol")


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
