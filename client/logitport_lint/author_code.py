"""The functions of a processor, with their syntax trees and the objects that their names refer to."""

from __future__ import annotations

import ast
import inspect
import linecache
from functools import cached_property, lru_cache
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from logitport import dialects
from logitport.payload.portability import top_level, travels_by_value

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN = object()

_MAX_FUNCTIONS = 1000
# They run once for an instance or a class, not in calls.
_NOT_CALLS = frozenset({"__init__", "__new__", "__init_subclass__", "__set_name__", "__post_init__", "__setstate__"})
_SEEDS = frozenset({"seed", "manual_seed", "fork_rng", "set_rng_state", "setstate", "set_state"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """A suspect line.

    Attributes:
        kind: what was found, one of the kinds of the package.
        name: the variable or attribute that changes, or the function that draws.
        file: path of the file.
        line: number of the line.
        code: the line.
        reason: what is wrong, and what to write instead.
    """

    kind: str
    name: str
    file: str
    line: int
    code: str
    reason: str

    @property
    def where(self) -> str:
        """The line, with its file and number."""
        return f"{self.file}:{self.line}: `{self.code}`"

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class AuthorFunction:
    """A function of the author.

    Args:
        function: the function.
        cls: the class that has it as a method; None for a function that is called by its name.
        kind: type of the object in the class: function, classmethod, staticmethod or property.

    Attributes:
        node: its syntax tree.
        cls: as above.
    """

    def __init__(self, function: FunctionType, node: _Function, cls: type | None, kind: type = FunctionType) -> None:
        self._function = function
        self.node = node
        self.cls = cls
        self._kind = kind

    @cached_property
    def parameters(self) -> list[str]:
        """Names of its parameters."""
        code = self._function.__code__
        return list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    @property
    def receiver(self) -> str:
        """The name of the parameter that has the instance, or ""."""
        return self.parameters[0] if self._has_receiver and self._kind is not classmethod else ""

    @property
    def free_variables(self) -> tuple[str, ...]:
        """Names of the variables of enclosing functions."""
        return self._function.__code__.co_freevars

    @cached_property
    def seeds(self) -> bool:
        """Whether it seeds a generator of random numbers."""
        return any(isinstance(one, ast.Attribute) and one.attr in _SEEDS for one in ast.walk(self.node))

    def finding(self, kind: str, name: str, at: ast.stmt | ast.expr, reason: str) -> Finding:
        """Make the finding at a node."""
        file = self._function.__code__.co_filename
        return Finding(kind, name, file, at.lineno, linecache.getline(file, at.lineno).strip(), reason)

    def is_class(self, node: ast.expr) -> bool:
        """Whether an expression is a class: its name, the first parameter of a class method, or type(self)."""
        if isinstance(node, ast.Name) and self._has_receiver and self._kind is classmethod:
            return node.id == self.parameters[0] or isinstance(self.resolve(node), type)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type":
            return len(node.args) == 1
        if isinstance(node, ast.Attribute) and node.attr == "__class__":
            return True
        return isinstance(self.resolve(node), type)

    def resolve(self, node: ast.AST) -> Any:
        """The object that a name, or an attribute of a name, refers to now; `UNKNOWN` for other expressions."""
        if isinstance(node, ast.Name):
            return self._value(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            if isinstance(owner, ModuleType):
                return vars(owner).get(node.attr, UNKNOWN)
            if owner is not UNKNOWN:
                return inspect.getattr_static(owner, node.attr, UNKNOWN)
        return UNKNOWN

    def called(self) -> Iterator[FunctionType]:
        """Yield the functions that it calls by their names."""
        for node in ast.walk(self.node):
            if isinstance(node, ast.Call) and isinstance(found := self.resolve(node.func), FunctionType):
                yield found

    @property
    def _has_receiver(self) -> bool:
        return self.cls is not None and self._kind is not staticmethod and bool(self.parameters)

    def _value(self, name: str) -> Any:
        code = self._function.__code__
        if name in code.co_varnames or name in code.co_cellvars:
            return UNKNOWN
        if name in code.co_freevars:
            cell = (self._function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                return UNKNOWN
        return self._function.__globals__.get(name, UNKNOWN)


def functions_of(processor: Any) -> list[AuthorFunction]:
    """The functions that a processor's calls run: its methods, and the functions that they call by name.

    Functions of installed packages are left out.
    """
    author = dialects.author_of(processor)
    package = top_level(getattr(author, "__module__", "") or "")
    found = list(_methods(author, package)) if isinstance(author, type) else _parsed(inspect.unwrap(author), package)
    seen = {id(one.node) for one in found}
    todo = list(found)
    while todo and len(found) < _MAX_FUNCTIONS:
        for called in todo.pop().called():
            for function in _parsed(inspect.unwrap(called), package):
                if id(function.node) not in seen:
                    seen.add(id(function.node))
                    found.append(function)
                    todo.append(function)
    return found


def _methods(cls: type, package: str) -> Iterator[AuthorFunction]:
    for parent in cls.__mro__:
        for name, value in vars(parent).items():
            if name in _NOT_CALLS:
                continue
            kind = type(value)
            for function in _inner_functions(value):
                yield from _parsed(inspect.unwrap(function), package, cls, kind)


def _inner_functions(value: Any) -> list[Any]:
    if isinstance(value, classmethod | staticmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [one for one in (value.fget, value.fset) if one is not None]
    return [value]


def _parsed(function: Any, package: str, cls: type | None = None, kind: type = FunctionType) -> list[AuthorFunction]:
    """The function with its syntax tree, in a list; [] if it is not the author's, or its source cannot be read."""
    if not isinstance(function, FunctionType) or not travels_by_value(function.__module__ or "", package):
        return []
    code = function.__code__
    node = _functions_in(code.co_filename, tuple(linecache.getlines(code.co_filename, function.__globals__))).get(
        (code.co_name, code.co_firstlineno)
    )
    return [] if node is None else [AuthorFunction(function, node, cls, kind)]


@lru_cache(maxsize=16)
def _functions_in(file: str, lines: tuple[str, ...]) -> dict[tuple[str, int], _Function]:  # noqa: ARG001
    """The functions of a file by their names and first lines, as code objects have them."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return {}
    return {
        (node.name, min([node.lineno, *(one.lineno for one in node.decorator_list)])): node
        for node in ast.walk(tree)
        if isinstance(node, _Function)
    }
