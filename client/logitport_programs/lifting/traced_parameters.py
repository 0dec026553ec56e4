"""The parameters of an SGLang class, while it is traced: those that it reads, and the tensors that it makes of them.

A class for SGLang gets a dict of each row's parameters. It may read keys, and make a tensor [rows] of what it read. All
else that it does with a parameter is Python code. Its result would be fixed at the capture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from logitport.errors import InvalidArgument, NotCapturable
from logitport_programs.authoring.declarations import Bool, Declaration, Float, Int
from logitport_programs.types import Element
from logitport_programs.verifier import MAX_NAME_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_REQUIRED = object()
_DTYPES = {Element.FLOAT32: torch.float32, Element.INT64: torch.int64, Element.BOOL: torch.bool}
_DECLARATIONS: dict[Element, Callable[..., Declaration]] = {
    Element.FLOAT32: Float,
    Element.INT64: Int,
    Element.BOOL: Bool,
}
_TYPES: dict[type, Element] = {bool: Element.BOOL, int: Element.INT64, float: Element.FLOAT32}
_ADVICE = "make a tensor of all rows first, torch.tensor([p[...] for p in custom_param_list]), and compute with it"


class Reads:
    """The parameters that a class reads, in their order."""

    def __init__(self) -> None:
        self._defaults: dict[str, object] = {}
        self._elements: dict[str, Element] = {}

    def add(self, name: object, default: object) -> None:
        """Add a read. Refuses another default for the same parameter."""
        if name == "__req__":
            raise NotCapturable(
                "the code reads the request, which a program has not: derive from TensorProcessor, and read "
                "history.ids, history.token_mask() or history.token_counts()"
            )
        if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_NAME_LENGTH:
            raise NotCapturable(f"the parameter {name!r:.80} is no identifier")
        if default is not _REQUIRED and type(default) not in _TYPES:
            raise NotCapturable(
                f"the default of parameter {name!r} is {default!r:.80}; it must be a number or a bool: write "
                f"p.get({name!r}, 1.0), or p[{name!r}] if requests must set it"
            )
        known = self._defaults.setdefault(name, default)
        if type(known) is not type(default) or known != default:
            raise NotCapturable(f"the parameter {name!r} is read with two defaults: use one")

    def typed(self, name: str, element: Element | None) -> Element:
        """The element type of a parameter. `element` is what the code converts it to, if it does."""
        default = self._defaults[name]
        found = element or _TYPES.get(type(default), Element.FLOAT32)
        if self._elements.setdefault(name, found) is not found:
            raise NotCapturable(
                f"the parameter {name!r} is read as {found} and as {self._elements[name]}: use one type"
            )
        return found

    def declarations(self) -> dict[str, Declaration]:
        """Return a declaration of each parameter. Refuses a parameter that no tensor is made of."""
        if unused := [name for name in self._defaults if name not in self._elements]:
            raise NotCapturable(f"the parameter {unused[0]!r} is read, but no tensor is made of it: {_ADVICE}")
        return {name: self._declaration(name, element) for name, element in self._elements.items()}

    def _declaration(self, name: str, element: Element) -> Declaration:
        default: Any = self._defaults[name]
        if default is not _REQUIRED:
            default = {Element.FLOAT32: float, Element.INT64: int, Element.BOOL: bool}[element](default)
        try:
            if isinstance(default, float) and math.isnan(default):
                raise InvalidArgument("NaN")
            return _DECLARATIONS[element](default=None if default is _REQUIRED else default)
        except InvalidArgument as error:
            raise NotCapturable(f"the default of parameter {name!r} is {default!r:.80}: {error.message}") from error


class ParameterRows:
    """Replaces `custom_param_list`: a dict for each row."""

    def __init__(self, reads: Reads, logits: torch.Tensor) -> None:
        self._reads = reads
        self.logits = logits
        rows = logits.shape[0]
        self._count = rows.node.hint if isinstance(rows, torch.SymInt) else rows

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[_ParameterRow]:
        return (_ParameterRow(self._reads, row) for row in range(self._count))

    def __getitem__(self, row: int) -> _ParameterRow:
        return list(self)[row]


def _refusal(use: str) -> Callable[..., Any]:
    def refuse(self: Any, *_: object, **__: object) -> NoReturn:
        raise NotCapturable(f"{self!s} is used as a Python value ({use}), which a program would fix: {_ADVICE}")

    return refuse


class _ParameterRow:
    """Replaces the parameters of one row."""

    def __init__(self, reads: Reads, row: int) -> None:
        self._reads = reads
        self._row = row

    def __getitem__(self, name: str) -> RowValue:
        return self._read(name, _REQUIRED)

    def get(self, name: str, default: object = None) -> RowValue:
        return self._read(name, default)

    def _read(self, name: str, default: object) -> RowValue:
        self._reads.add(name, default)
        return RowValue(name, self._row)

    def __str__(self) -> str:
        return "the dict of a row's parameters"

    keys, values, items, copy, pop, setdefault, update, popitem, clear = map(
        _refusal, ("keys", "values", "items", "copy", "pop", "setdefault", "update", "popitem", "clear")
    )
    __contains__, __iter__, __len__, __eq__, __setitem__, __delitem__, __or__ = map(
        _refusal, ("in", "a loop over it", "len", "==", "an assignment", "del", "|")
    )
    __hash__ = None  # type: ignore[assignment]
    __class__ = property(_refusal("isinstance"))

    def __bool__(self) -> bool:
        return True  # `p or {}` reads the same parameters; another use differs in the comparison with the class


@dataclass(frozen=True, eq=False)
class RowValue:
    """One row's parameter. A tensor can be made of all rows' parameters.

    Attributes:
        name: the parameter.
        row: the row.
        element: the type that the code has converted it to, if any.
        dtype: of the tensor, if it is one.
    """

    name: str
    row: int
    element: Element | None = None
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        return f"parameter {self.name!r} of one row"

    __bool__ = _refusal("if, and, or, not")
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refusal("a comparison")
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refusal("arithmetic")
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refusal("arithmetic")
    __round__ = __floor__ = __ceil__ = __trunc__ = __and__ = __or__ = __xor__ = __invert__ = _refusal("arithmetic")
    __float__ = __int__ = __index__ = __complex__ = _refusal("a conversion in a helper function")
    __len__ = __iter__ = __getitem__ = __contains__ = _refusal("a list")
    __hash__ = __format__ = _refusal("a key or a text")
    __array__ = __call__ = _refusal("an object")
    __class__ = property(_refusal("isinstance"))

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> NoReturn:
        raise _not_of_all_rows(_found((args, kwargs or {})), function)


class TensorsOfRows(TorchFunctionMode):
    """Makes tensors of the parameters of all rows, where torch.tensor, as_tensor, new_tensor or stack is called."""

    def __init__(self, reads: Reads, count: int, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
        """Args: the reads so far; the number of rows; the parameters, or None for ones."""
        super().__init__()
        self._reads = reads
        self._count = count
        self._tensors = tensors

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        value = _found((args, kwargs))
        if value is None:
            return function(*args, **kwargs)
        if function in (torch.tensor, torch.as_tensor):
            return self._made(args[0] if args else kwargs["data"], kwargs.get("dtype"), function)
        if function is torch.Tensor.new_tensor:
            data = args[1] if len(args) > 1 else kwargs["data"]
            return self._made(data, kwargs.get("dtype") or args[0].dtype, function)
        if function is torch.stack and kwargs.get("dim", args[1] if len(args) > 1 else 0) == 0:
            values = list(args[0] if args else kwargs["tensors"])
            if all(type(one) is RowValue and one.dtype is not None for one in values):
                return self._made(values, values[0].dtype, function)
        raise _not_of_all_rows(value, function)

    def _made(self, data: Any, dtype: Any, function: Any) -> Any:
        kind = getattr(dtype, "kind", dtype)  # of a replaced built-in function
        dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}.get(kind, kind)
        if type(data) is RowValue:
            element = data.element or _element_of(dtype)
            given = dtype or _DTYPES[self._reads.typed(data.name, element)]
            return RowValue(data.name, data.row, element, given)
        if not isinstance(data, list | tuple) or len(data) != self._count:
            raise _not_of_all_rows(_found(data), function)
        if all(type(one) in (list, tuple) for one in data) and len({len(one) for one in data}) == 1:
            columns = [self._made(list(column), dtype, function) for column in zip(*data, strict=True)]
            return torch.stack(columns, dim=-1)
        first = data[0]
        if any(type(one) is not RowValue or one.row != row for row, one in enumerate(data)):
            raise _not_of_all_rows(_found(data), function)
        if len({(one.name, one.element) for one in data}) > 1:
            raise NotCapturable(f"{first!s} and another parameter are in one list: make a tensor of each")
        element = self._reads.typed(first.name, first.element or _element_of(dtype))
        if self._tensors is None:
            found = torch.ones(self._count, dtype=_DTYPES[element])
        elif first.name in self._tensors:
            found = self._tensors[first.name].clone()
        else:
            raise NotCapturable(f"the parameter {first.name!r} is only read under a condition: read it in each call")
        return found if dtype is None else found.to(dtype)


def _element_of(dtype: torch.dtype | None) -> Element | None:
    if dtype is None:
        return None
    if dtype is torch.bool:
        return Element.BOOL
    return Element.FLOAT32 if dtype.is_floating_point else Element.INT64


def _found(data: Any) -> RowValue | None:
    """The first parameter of a row in the arguments of a call."""
    if type(data) is RowValue:
        return data
    inner = data.values() if type(data) is dict else data if type(data) in (list, tuple) else ()
    return next((found for one in inner if (found := _found(one)) is not None), None)


def _not_of_all_rows(value: RowValue | None, function: Any) -> NotCapturable:
    name = getattr(function, "__name__", function)
    return NotCapturable(
        f"{value!s} is an argument of {name}, in a loop over rows or for some rows only, which programs lack: {_ADVICE}"
    )


class _Converting(type):
    """Type of replacements of `float`, `int` and `bool`, which convert a parameter of a row to another one."""

    kind: type
    element: Element

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and type(args[0]) is RowValue:
            value: RowValue = args[0]
            return RowValue(value.name, value.row, cls.element, value.dtype)
        return cls.kind(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.kind)

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "kind"), name)


def builtins() -> dict[str, object]:
    """Built-in functions that keep the parameters of rows symbolic."""

    def length(sized: Any) -> Any:
        return sized.logits.shape[0] if type(sized) is ParameterRows else len(sized)

    conversions = {
        kind.__name__: _Converting(kind.__name__, (), {"kind": kind, "element": element})
        for kind, element in _TYPES.items()
    }
    return {**conversions, "len": length}
