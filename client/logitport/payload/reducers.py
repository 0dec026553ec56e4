"""Reductions of single objects: (function, arguments), where a plain dill or the standard library has the function."""

from __future__ import annotations

import functools
import os
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

from logitport.errors import PayloadError
from logitport.payload.python_check import CODE_FIELDS

if TYPE_CHECKING:
    from enum import Enum
    from types import CodeType, FunctionType


def reduce(obj: Any) -> Any:
    """Return a reduction for a pickler's `reducer_override`, or NotImplemented where dill's own is correct."""
    reduction = _REDUCTIONS.get(type(obj))
    if reduction is not None:
        return reduction(obj)
    if is_plain_tensor(obj):
        return _tensor(obj)
    torch = sys.modules.get("torch")
    if torch is not None and type(obj) is torch.dtype:
        return getattr, (torch, str(obj).removeprefix("torch."))
    return NotImplemented


def _in_order(obj: Any) -> Any:
    """Reduce a set in sorted order: its own order depends on the process's hash seed, but the bytes must not."""
    one_type = len(set(map(type, obj))) == 1  # the same order, in a third of the time
    key = repr if one_type else lambda element: (type(element).__name__, repr(element))
    return type(obj), (sorted(obj, key=key),)


def _bound_method(method: types.MethodType) -> Any:
    name = method.__func__.__name__
    return (getattr, (method.__self__, name)) if getattr(method.__self__, name, None) == method else NotImplemented


_REDUCTIONS: dict[type, Any] = {
    set: _in_order,
    frozenset: _in_order,
    types.CellType: lambda _: (types.CellType, ()),
    types.MethodType: _bound_method,
    # Before 3.12 it holds a lock, which cannot be pickled.
    functools.cached_property: lambda one: (functools.cached_property, (one.func,), {"attrname": one.attrname}),
    typing.NewType: lambda one: (typing.NewType, (one.__name__, one.__supertype__)),
    # A bound has no effect at run time.
    typing.TypeVar: lambda one: (typing.TypeVar, (one.__name__, *one.__constraints__)),
}


def is_plain_tensor(obj: Any) -> bool:
    """Whether it is a tensor that is shipped as its bytes."""
    torch = sys.modules.get("torch")
    return torch is not None and type(obj) is torch.Tensor and obj.layout is torch.strided and not obj.is_quantized


def plain_tensor(tensor: Any) -> tuple[Any, Any]:
    """Return the tensor on the CPU, without its gradient, and its bytes as an array; copied only if they must be."""
    torch = sys.modules["torch"]
    plain = tensor.detach().cpu().contiguous()
    return plain, plain.reshape(-1).view(torch.uint8).numpy()


def _tensor(tensor: Any) -> Any:
    """Reduce a tensor to its bytes, because torch's own pickle contains addresses.

    It is loaded on the CPU, and without its gradient.
    """
    torch = sys.modules["torch"]
    plain, data = plain_tensor(tensor)
    if not plain.numel():
        return functools.partial(torch.empty, dtype=plain.dtype), (tuple(plain.shape),)
    flat = _Call(functools.partial(torch.frombuffer, dtype=plain.dtype), bytearray(data))
    return torch.reshape, (flat, tuple(plain.shape))


class _Call:
    """An object that is unpickled as the result of a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


def code_arguments(code: CodeType) -> tuple[Any, ...]:
    """Make the arguments of dill's `_create_code`. Of the file's path only the last part is shipped."""
    # The first argument is a line table in the format of 3.9, which later versions do not use.
    return (b"", *(_code_field(name, getattr(code, f"co_{name}")) for name, _ in CODE_FIELDS))


def _code_field(name: str, value: Any) -> Any:
    return os.path.basename(value) if name == "filename" else _fresh(value)


def _fresh(value: Any) -> Any:
    """Copy a constant, so that the bytes do not depend on which equal constants are one object.

    Pickle writes the second use of one object as a reference, and of an equal object as a copy.
    """
    if type(value) in (tuple, frozenset):
        return type(value)([_fresh(element) for element in value])
    return value


def function_state(function: FunctionType) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Make the state that BUILD sets on a function, which was created from code, globals, name and closure."""
    defaults = function.__defaults__
    slots = {
        "__qualname__": function.__qualname__,
        "__module__": function.__module__,
        "__doc__": function.__doc__,
        "__defaults__": defaults and (*defaults,),
        "__kwdefaults__": function.__kwdefaults__,
    }
    return dict(vars(function)) or None, {name: value for name, value in slots.items() if value is not None}


def enum_class(cls: type[Enum]) -> tuple[tuple[Any, tuple[Any, ...]], dict[str, Any]]:
    """Reduce an enum class to ((function, arguments), attributes to set later).

    The functional API makes the members.
    """
    *mixins, base = cls.__bases__
    if "__init__" in vars(cls) or "__new_member__" in vars(cls) or len(mixins) > 1:
        raise PayloadError(
            f"{cls.__qualname__} is an enum with its own __init__, __new__ or several mixins; ship a plain enum"
        )
    keywords = {"module": cls.__module__, "qualname": cls.__qualname__, **({"type": mixins[0]} if mixins else {})}
    members = {name: member.value for name, member in cls.__members__.items()}
    attributes = {
        name: value
        for name, value in vars(cls).items()
        if name not in members
        and (not name.startswith("_") or name == "_missing_" or getattr(value, "__module__", "") == cls.__module__)
        and name != "__new__"
    }
    return (functools.partial(base, **keywords), (cls.__name__, members)), attributes
