"""What an instance of somebody else's class holds, so that it can be told whether that has changed."""

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

# What cannot be changed, and can be compared.
_PLAIN = {type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), re.Pattern}
_PLAIN |= {torch.dtype, torch.device, torch.Size}
_CONTAINERS = {list, tuple, set, frozenset}
# What is the same as long as it is the same object.
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)
# It may be taken once a row and step.
_MAX_VALUES = 100_000


class Snapshot:
    """All that an object holds at one moment, as deep as a copy of it would go; equal to a later one if that is so.

    Tensors are not read: they are told apart by identity, and by how often they were written to. Functions and modules
    are taken to hold nothing. The snapshot of what cannot be copied, or holds very much, equals none.

    Attributes:
        tensors: those that were met; without those of what cannot be copied.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: object) -> None:
        self.tensors: list[torch.Tensor] = []
        self._marks: list[object] = []
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []  # as long as their ids are noted
        self._room = _MAX_VALUES
        try:
            self._look(value)
            self._whole = True
        except Exception:  # noqa: BLE001 - somebody else's code may raise anything
            self._whole = False
        self._seen.clear()
        self._alive.clear()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot) or not (self._whole and other._whole):
            return False
        try:
            return self._marks == other._marks
        except Exception:  # noqa: BLE001 - as above
            return False

    def _look(self, value: object) -> None:
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
            self._look_into(value)

    def _look_into(self, value: object) -> None:
        if type(value) is dict:
            self._look_at_all(value.keys())
            self._look_at_all(value.values())
        elif type(value) in _CONTAINERS:
            self._look_at_all(value)  # type: ignore[arg-type]
        elif isinstance(value, torch.Tensor):
            self.tensors.append(value)
            self._marks.append(_Same(value, value._version))
        elif type(value) is torch.Generator:
            self._marks.append(value.get_state().numpy().tobytes())
        elif isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                raise TypeError("objects in an array")
            self._take(value.nbytes // 8)
            self._marks += (value.dtype, value.shape, zlib.crc32(np.ascontiguousarray(value).data))
        else:
            made_from = value.__reduce_ex__(4)
            parts = made_from if isinstance(made_from, tuple) else (made_from,)
            for part in parts[:3]:
                self._look(part)
            for more in parts[3:5]:
                self._look_at_all(() if more is None else list(more))

    def _look_at_all(self, values: Collection[object]) -> None:
        self._take(1 + len(values))
        kinds = [*map(type, values)]
        self._marks.append(kinds)
        if _PLAIN.issuperset(kinds):
            self._marks += values
            return
        for value in values:
            self._look(value)

    def _take(self, values: int) -> None:
        self._room -= values
        if self._room < 0:
            raise OverflowError("too much to look at")


class _Same:
    """Equal if it is the same object, written to as often."""

    __slots__ = ("value", "version")

    def __init__(self, value: object, version: int = 0) -> None:
        self.value = value
        self.version = version

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value and self.version == other.version
