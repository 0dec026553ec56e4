"""Snapshots of what an object of a third-party class holds, to detect whether it has changed."""

from __future__ import annotations

import enum
import re
import types
import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Collection

# Immutable types that can be compared.
_PLAIN = {type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), re.Pattern}
_PLAIN |= {torch.dtype, torch.device, torch.Size}
_CONTAINERS = {list, tuple, set, frozenset}
# Types that are compared by identity.
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)
# Bounds the time of a snapshot, which may be taken for each row of a step.
_MAX_VALUES = 100_000


class Snapshot:
    """Everything that an object holds at one moment, as deep as a deep copy goes. Compare two to find a change.

    Tensors are not read: they are compared by identity and version counter. Functions and modules are treated as
    stateless. The snapshot of an object that cannot be copied, or is too large, equals no other.

    Attributes:
        tensors: the tensors that were found; incomplete if the object cannot be copied.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: object) -> None:
        self.tensors: list[torch.Tensor] = []
        self._marks: list[object] = []
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []  # keeps the ids of `_seen` from being reused
        self._values_left = _MAX_VALUES
        try:
            self._visit(value)
            self._is_complete = True
        except Exception:  # noqa: BLE001 - third-party code may raise anything
            self._is_complete = False
        self._seen.clear()
        self._alive.clear()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot) or not (self._is_complete and other._is_complete):
            return False
        try:
            return self._marks == other._marks
        except Exception:  # noqa: BLE001 - as above
            return False

    def _visit(self, value: object) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._marks += (kind, value)
        elif isinstance(value, _NAMED):
            self._marks.append(_Same(value))
        elif id(value) in self._seen:
            self._marks += ("again", self._seen[id(value)])
        else:
            self._seen[id(value)] = len(self._seen)
            self._alive.append(value)
            self._marks.append(kind)
            self._visit_parts(value)

    def _visit_parts(self, value: object) -> None:
        if type(value) is dict:
            self._visit_all(value.keys())
            self._visit_all(value.values())
        elif type(value) in _CONTAINERS:
            self._visit_all(value)  # type: ignore[arg-type]
        elif isinstance(value, torch.Tensor):
            self.tensors.append(value)
            self._marks.append(_Same(value, value._version))
        elif type(value) is torch.Generator:
            self._marks.append(value.get_state().numpy().tobytes())
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                raise TypeError("an array of Python objects cannot be compared")
            self._count(value.nbytes // 8)
            self._marks += (value.dtype, value.shape, zlib.crc32(np.ascontiguousarray(value).data))
        else:
            made_from = value.__reduce_ex__(4)
            parts = made_from if isinstance(made_from, tuple) else (made_from,)
            for part in parts[:3]:
                self._visit(part)
            for more in parts[3:5]:
                self._visit_all(() if more is None else list(more))

    def _visit_all(self, values: Collection[object]) -> None:
        self._count(1 + len(values))
        kinds = [*map(type, values)]
        self._marks.append(kinds)
        if _PLAIN.issuperset(kinds):
            self._marks += values
            return
        for value in values:
            self._visit(value)

    def _count(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise OverflowError(f"more than {_MAX_VALUES} values")


class _Same:
    """Equal if the object is the same and its version is, too."""

    __slots__ = ("value", "version")

    def __init__(self, value: object, version: int = 0) -> None:
        self.value = value
        self.version = version

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value and self.version == other.version
