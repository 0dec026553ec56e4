"""State of a processor between calls: attributes, class attributes, variables of its module and its closure."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from logitport.core.hook_names import names_used

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMMUTABLE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, property, classmethod, staticmethod)
_LIBRARIES = ("torch", "logitport", "logitport_programs", "abc", "typing", "builtins", "numpy")
_CONSTANTS = frozenset((type(None), bool, int, float, complex, str, bytes))
_MAX_DEPTH = 8
_ABSENT = object()


class _Variable(NamedTuple):
    """A variable: a class attribute, a variable of a module, or the content of a cell of a closure."""

    owner: Any
    name: str

    def get(self) -> Any:
        if isinstance(self.owner, dict):
            return self.owner.get(self.name, _ABSENT)
        if isinstance(self.owner, type):
            return vars(self.owner).get(self.name, _ABSENT)
        try:
            return self.owner.cell_contents
        except ValueError:
            return _ABSENT

    def put(self, value: Any) -> None:
        if value is self.get():
            return
        if isinstance(self.owner, dict):
            self.owner.pop(self.name) if value is _ABSENT else self.owner.update({self.name: value})
        elif isinstance(self.owner, type):
            delattr(self.owner, self.name) if value is _ABSENT else setattr(self.owner, self.name, value)
        elif value is not _ABSENT:
            self.owner.cell_contents = value


class State:
    """State that the functions of a processor can change.

    Args:
        processor: an instance or a function.
        function: the function that is called.
    """

    def __init__(self, processor: object, function: Any) -> None:
        self._processor = processor
        self._classes = [
            cls
            for cls in type(processor).__mro__
            if cls.__module__.partition(".")[0] not in _LIBRARIES and not issubclass(cls, FunctionType)
        ]
        methods = [value for cls in self._classes for value in vars(cls).values() if isinstance(value, FunctionType)]
        self._variables: dict[str, _Variable] = {}
        self._add_functions([function, *methods])
        self._before = {name: _copied(value) for name, value in self._values().items()}

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Let the processor use copies of its variables for a while, so that calls leave no trace in them."""
        current = {**self._variables, **self._class_variables()}
        originals = {name: variable.get() for name, variable in current.items()}
        for name, variable in current.items():
            variable.put(_copied(originals[name]))
        try:
            yield
        finally:
            for name, variable in (current | self._class_variables()).items():
                variable.put(originals.get(name, _ABSENT))

    def changed(self) -> str | None:
        """The name of something that has changed since the construction; None if nothing has."""
        present = self._values()
        for name in sorted(self._before.keys() | present.keys()):
            before, after = self._before.get(name, _ABSENT), present.get(name, _ABSENT)
            if not _same(before, after, 0):
                return name
        return None

    def _values(self) -> dict[str, Any]:
        own = vars(self._processor) if _has_vars(self._processor) else {}
        found = {name: variable.get() for name, variable in {**self._variables, **self._class_variables()}.items()}
        found |= {f"self.{name}": value for name, value in own.items()}
        return {name: value for name, value in found.items() if not isinstance(value, _IMMUTABLE)}

    def _class_variables(self) -> dict[str, _Variable]:
        return {
            f"{cls.__qualname__}.{name}": _Variable(cls, name)
            for cls in self._classes
            for name, value in vars(cls).items()
            if not _is_internal(name) and not isinstance(value, _IMMUTABLE)
        }

    def _add_functions(self, functions: list[Any]) -> None:
        """Add the variables of functions, and of the functions that they call by name."""
        seen: set[int] = set()
        while functions:
            function = functions.pop()
            if not isinstance(function, FunctionType) or id(function) in seen or len(seen) > 1000:
                continue
            seen.add(id(function))
            if function.__module__ and function.__module__.partition(".")[0] in _LIBRARIES:
                continue
            variables = function.__globals__
            for name in names_used(function.__code__):
                value = variables.get(name, _ABSENT)
                functions.append(value)
                if not isinstance(value, _IMMUTABLE) and not _is_internal(name):
                    self._variables[name] = _Variable(variables, name)
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                variable = _Variable(cell, name)
                functions.append(variable.get())
                if not isinstance(variable.get(), _IMMUTABLE) and name != "__class__":
                    self._variables[name] = variable


def _same(one: Any, other: Any, depth: int) -> bool:
    if type(one) is not type(other):
        return False
    if one is other or depth > _MAX_DEPTH or isinstance(one, _IMMUTABLE):
        return True
    if _holds_constants(one) and _holds_constants(other) and one == other and _types(one) == _types(other):
        return True
    if isinstance(one, torch.Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.equal(one.nan_to_num(), other.nan_to_num())
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
    if value is _ABSENT:
        return value
    try:
        return copy.copy(value) if _holds_constants(value) else copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - what cannot be copied is compared by its identity
        return value


def _holds_constants(value: Any) -> bool:
    """Whether a value is a list, tuple, set or dict of constants: 150,000 of a vocabulary are copied at once."""
    if type(value) is dict:
        return _CONSTANTS.issuperset(map(type, value)) and _CONSTANTS.issuperset(map(type, value.values()))
    return type(value) in (list, tuple, set, frozenset) and _CONSTANTS.issuperset(map(type, value))


def _types(container: Any) -> list[type]:
    """Types of the elements, in an order that equal containers share: 1 equals True and 1.0."""
    if isinstance(container, dict):
        return [type(container[key]) for key in sorted(container, key=repr)]
    return [] if isinstance(container, set | frozenset) else list(map(type, container))


def _has_vars(value: object) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, _IMMUTABLE)


def _is_internal(name: str) -> bool:
    return name.startswith("__") or name in ("_abc_impl", "_is_protocol", "_is_runtime_protocol")
