"""Finds results that are never used, so that the logits stay as they are."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport_lint.author_code import AuthorFunction, Finding

# Methods of tensors that return a new one. Names that other types use, too, such as `add`, are left out.
_TENSOR_METHODS = frozenset(
    {"clamp", "clip", "div", "index_add", "index_copy", "index_fill", "index_put", "log_softmax", "masked_fill"}
    | {"masked_scatter", "mul", "nan_to_num", "scatter", "scatter_add", "softmax", "where"}
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_REBOUND = (
    "the new value of {0!r} is never used, and the old one is not changed: edit the tensor in place, {0}[:] = ..., or "
    "use the new value"
)
_DROPPED = "{0}() returns a new tensor, which is not used: write {0}_(), or use the result"


def discards(function: AuthorFunction) -> Iterator[Finding]:
    """Yield the statements of a function without an effect.

    They assign a value computed from a parameter or a loop's variable to the same name, which is not read after that;
    or they call a method of a tensor that returns a new tensor, and drop it.
    """
    names = {*function.parameters, *_loop_variables(function.node)}
    names -= {
        one.id for inner in _inner_functions(function.node) for one in ast.walk(inner) if isinstance(one, ast.Name)
    }
    for statement, loops in _statements(function.node.body, ()):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if (
                isinstance(target, ast.Name)
                and target.id in names
                and _is_dead(function.node, statement, target, loops)
            ):
                yield function.finding("discard", target.id, statement, _REBOUND.format(target.id))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called = statement.value.func
            is_out = any(keyword.arg in ("out", "inplace") for keyword in statement.value.keywords)
            if isinstance(called, ast.Attribute) and called.attr in _TENSOR_METHODS and not is_out:
                yield function.finding("discard", called.attr, statement, _DROPPED.format(called.attr))


def _is_dead(function: ast.AST, statement: ast.Assign, target: ast.Name, loops: tuple[ast.stmt, ...]) -> bool:
    """Whether a value is computed from the old one, and never read.

    Args:
        function: the function.
        statement: assigns the value.
        target: the name.
        loops: the loops around the statement, from the outside in.
    """
    own = {id(one) for one in ast.walk(statement.value)}
    reads = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == target.id and _is_read(one)]
    if not any(id(one) in own for one in reads):
        return False
    in_other_loops = {
        id(one) for loop in _loops_of(function, target.id) if loop not in loops for one in _walk(loop.body)
    }
    others = {id(one): one for one in reads if id(one) not in own | in_other_loops}
    if any((one.lineno, one.col_offset) > (statement.lineno, statement.col_offset) for one in others.values()):
        return False
    for loop in reversed(loops):
        if target.id in _targets_of(loop):
            return True  # the next round replaces the value
        if any(id(one) in others for one in ast.walk(loop)):
            return False  # the next round reads it
    return True


def _is_read(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Store)


def _statements(body: list[ast.stmt], loops: tuple[ast.stmt, ...]) -> Iterator[tuple[ast.stmt, tuple[ast.stmt, ...]]]:
    """Yield the statements with the loops around each, but not from functions inside."""
    for statement in body:
        yield statement, loops
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inside = (*loops, statement) if isinstance(statement, _LOOPS) else loops
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, None) or [], inside)
        for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
            yield from _statements(part.body, inside)


def _loops_of(function: ast.AST, name: str) -> list[ast.For]:
    return [node for node in ast.walk(function) if isinstance(node, ast.For) and name in _targets_of(node)]


def _walk(body: list[ast.stmt]) -> Iterator[ast.AST]:
    return (node for statement in body for node in ast.walk(statement))


def _loop_variables(function: ast.AST) -> set[str]:
    return {name for node in ast.walk(function) if isinstance(node, _LOOPS) for name in _targets_of(node)}


def _targets_of(loop: ast.AST) -> set[str]:
    target = getattr(loop, "target", None)
    return set() if target is None else {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}


def _inner_functions(function: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        if node is not function and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
