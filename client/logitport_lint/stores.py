"""Finds changes of attributes, class attributes, globals and enclosed variables in a call."""

from __future__ import annotations

import ast
import dis
from collections import deque
from collections.abc import MutableMapping, MutableSequence, MutableSet
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from logitport_lint.author_code import UNKNOWN, AuthorFunction, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTAINERS = (MutableMapping, MutableSequence, MutableSet, deque)
_CHANGING_METHODS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"}
    | {"setdefault", "sort", "update"}
)
_KEEP = {
    "attribute": "each call changes the instance",
    "class attribute": "a call changes the class, which all requests share",
    "global": "a call changes a variable that all requests share",
    "enclosed variable": "a call changes a variable that all requests share",
}


def stores(function: AuthorFunction) -> Iterator[Finding]:
    """Yield the changes in a function. A container that the function also searches is a cache, and is left out."""
    declared = {name: kind for node in ast.walk(function.node) for name, kind in _declared(node)}
    for node in ast.walk(function.node):
        found = [_kind_of(function, target, declared) for target in _targets(node)]
        found += [_kind_of_container(function, container) for container in _containers(node)]
        for kind, name in found:
            if kind:
                yield function.finding(kind, name, node, _KEEP[kind])  # type: ignore[arg-type] # a statement or a call


def _declared(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Global | ast.Nonlocal):
        kind = "global" if isinstance(node, ast.Global) else "enclosed variable"
        yield from ((name, kind) for name in node.names)


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement or a call of setattr sets or deletes."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.AnnAssign) and node.value is not None):
        targets = [node.target]
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
        named = [one for one in node.args[1:2] if isinstance(one, ast.Constant)]
        targets = [ast.Attribute(node.args[0], str(one.value)) for one in named]
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        else:
            yield target.value if isinstance(target, ast.Starred) else target


def _containers(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the containers that a statement or call changes: x of `x[i] = y` and of `x.append(y)`."""
    yield from (target.value for target in _targets(node) if isinstance(target, ast.Subscript))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING_METHODS:
        yield node.func.value


def _kind_of(function: AuthorFunction, target: ast.expr, declared: dict[str, str]) -> tuple[str, str]:
    """The kind of the variable that a target is, and its name; ("", "") if it does not outlive the call."""
    if isinstance(target, ast.Name):
        kind = declared.get(target.id, "")
        is_own = kind == "enclosed variable" and target.id not in function.free_variables
        return ("", "") if not kind or is_own else (kind, target.id)
    if not isinstance(target, ast.Attribute):
        return "", ""
    if _is_receiver(function, target.value):
        return "attribute", target.attr
    if function.is_class(target.value):
        return "class attribute", target.attr
    return ("global", target.attr) if isinstance(function.resolve(target.value), ModuleType) else ("", "")


def _kind_of_container(function: AuthorFunction, node: ast.expr) -> tuple[str, str]:
    if _is_searched(function, node):
        return "", ""
    if isinstance(node, ast.Attribute):
        if _is_receiver(function, node.value):
            value = _shared_attributes(function.cls).get(node.attr, UNKNOWN)
            return ("class attribute", node.attr) if _changes(value) else ("", "")
        if function.is_class(node.value):
            return "class attribute", node.attr
    if _changes(function.resolve(node)):
        return "global", ast.unparse(node)
    return "", ""


def _changes(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) or type(value).__name__ in ("ndarray", "Tensor")


def _is_receiver(function: AuthorFunction, node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == function.receiver != ""


def _shared_attributes(cls: type | None) -> dict[str, Any]:
    """The attributes of a class that no method replaces by one of the instance."""
    parents = cls.__mro__ if cls is not None else ()
    methods = [getattr(value, "__code__", None) for parent in parents for value in vars(parent).values()]
    replaced = {name for code in methods if isinstance(code, CodeType) for name in _set_in(code)}
    found = {name: value for parent in reversed(parents) for name, value in vars(parent).items()}
    return {name: value for name, value in found.items() if name not in replaced}


def _set_in(code: CodeType) -> set[str]:
    """Names of the attributes that code sets."""
    return {str(one.argval) for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}


def _is_searched(function: AuthorFunction, container: ast.expr) -> bool:
    """Whether the function reads single elements by `in` or `get`, as it does of a cache."""
    searched: list[ast.expr] = []
    for node in ast.walk(function.node):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            searched.append(node.comparators[0])
        elif isinstance(node, ast.Attribute) and node.attr == "get":
            searched.append(node.value)
    return ast.unparse(container) in map(ast.unparse, searched)
