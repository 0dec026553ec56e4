"""How single objects are made again: (function, arguments), by names that a plain dill or the standard library has."""

from __future__ import annotations

import functools
import os
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

from logitport.errors import PayloadNotPortable
from logitport.payload.interpreter import CODE_FIELDS

if TYPE_CHECKING:
    from enum import Enum
    from types import CodeType, FunctionType


def reduce(obj: Any) -> Any:
    """What a pickler's `reducer_override` returns: a reduction, or NotImplemented where dill's own is good."""
    reduction = _REDUCTIONS.get(type(obj))
    if reduction is not None:
        return reduction(obj)
    torch = sys.modules.get("torch")
    if torch is not None and type(obj) is torch.Tensor and obj.layout is torch.strided and not obj.is_quantized:
        return _tensor(obj)
    if torch is not None and type(obj) is torch.dtype:
        return getattr, (torch, str(obj).removeprefix("torch."))
    return NotImplemented


def _in_order(obj: Any) -> Any:
    """The order of a set depends on the seed of the process's hashes; that of what we write must not."""
    return type(obj), (sorted(obj, key=lambda element: (type(element).__name__, repr(element))),)


def _bound_method(method: types.MethodType) -> Any:
    name = method.__func__.__name__
    return (getattr, (method.__self__, name)) if getattr(method.__self__, name, None) == method else NotImplemented


def _cached_property(prop: functools.cached_property[Any]) -> Any:
    # Before 3.12 it holds a lock, which does not travel.
    return functools.cached_property, (prop.func,), {"attrname": prop.attrname}


def _new_type(new_type: Any) -> Any:
    return typing.NewType, (new_type.__name__, new_type.__supertype__)


def _type_var(variable: Any) -> Any:
    # A bound says nothing at run time.
    return typing.TypeVar, (variable.__name__, *variable.__constraints__)


_REDUCTIONS: dict[type, Any] = {
    set: _in_order,
    frozenset: _in_order,
    types.CellType: lambda _: (types.CellType, ()),
    types.MethodType: _bound_method,
    functools.cached_property: _cached_property,
    typing.NewType: _new_type,
    typing.TypeVar: _type_var,
}


def _tensor(tensor: Any) -> Any:
    """From its bytes: what torch itself pickles holds addresses. It arrives on the CPU, and without its gradient."""
    torch = sys.modules["torch"]
    plain = tensor.detach().cpu().contiguous()
    if not plain.numel():
        return functools.partial(torch.empty, dtype=plain.dtype), (tuple(plain.shape),)
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    flat = _Call(functools.partial(torch.frombuffer, dtype=plain.dtype), bytearray(data))
    return torch.reshape, (flat, tuple(plain.shape))


class _Call:
    """Pickles as what a call gives."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> Any:
        return self._call


def code_arguments(code: CodeType) -> tuple[Any, ...]:
    """What dill's `_create_code` takes. Of the path of its file only the last part travels."""
    # The line table of 3.9, for which the first place is, is of no use here.
    return (b"", *(_code_field(name, getattr(code, f"co_{name}")) for name, _ in CODE_FIELDS))


def _code_field(name: str, value: Any) -> Any:
    return os.path.basename(value) if name == "filename" else _fresh(value)


def _fresh(value: Any) -> Any:
    """A copy of a constant: pickle writes one object differently from two that are equal, and which it is varies."""
    if type(value) in (tuple, frozenset):
        return type(value)([_fresh(element) for element in value])
    return value


def function_state(function: FunctionType) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """What BUILD sets on a function made of code, globals, name and closure alone."""
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
    """((function, arguments), attributes to set): members are made by the functional API, the rest is set later."""
    *mixins, base = cls.__bases__
    if "__init__" in vars(cls) or "__new_member__" in vars(cls) or len(mixins) > 1:
        raise PayloadNotPortable(f"{cls.__qualname__} is an enum that makes its members itself; make it plain")
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
