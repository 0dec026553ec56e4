"""Static analysis of payloads: what unpickling would import and do.

fickling (Trail of Bits) converts the pickle to equivalent Python source. Nothing is run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fickling.fickle import Pickled  # type: ignore[import-untyped]

from logitport.errors import PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODE_MAKERS = ("_create_code", "CodeType")
_MAX_TEXT_LENGTH = 200


@dataclass(frozen=True)
class Function:
    """A function in the payload. Unpickling does not call it; using the processor does.

    Attributes:
        name: qualified name.
        uses: names of modules, attributes and globals in its code.
        strings: string constants in its code.
    """

    name: str
    uses: tuple[str, ...]
    strings: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The contents of a pickle.

    Attributes:
        imports: what unpickling imports, in the form "from module import name".
        statements: what unpickling does, as Python source; code and other bytes are abbreviated.
        functions: the functions in it.
    """

    imports: tuple[str, ...]
    statements: tuple[str, ...]
    functions: tuple[Function, ...]


def inspect_pickle(data: bytes) -> Inspection:
    """Analyse a pickle. Raises PayloadError if that fails, which is a reason not to run it."""
    try:
        tree = Pickled.load(data).ast
        statements = [node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
        imports = [ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        functions = tuple(_functions(tree))
        shown = [ast.unparse(_Abbreviate().visit(node)) for node in statements]
    except RecursionError as error:
        raise PayloadError("the pickle is nested too deeply to be analysed; do not run it") from error
    except PayloadError:
        raise
    except Exception as error:
        raise PayloadError(f"the pickle cannot be analysed ({error}); do not run it") from error
    return Inspection(tuple(dict.fromkeys(imports)), tuple(shown), functions)


def _functions(tree: ast.Module) -> Iterator[Function]:
    makers = {*_CODE_MAKERS, *_computed_code_makers(tree)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers):
            continue
        # In every Python version the first tuple is the constants. Names, variables, file and qualified name follow.
        at = next((at for at, argument in enumerate(node.args) if isinstance(argument, ast.Tuple)), len(node.args))
        constants, names, _, _, *qualified = node.args[at:] + [ast.Constant(None)] * 6
        name = next((text for text in reversed(list(_strings(ast.Tuple(qualified[:2])))) if text), "?")
        yield Function(name, tuple(_strings(names)), tuple(text for text in _strings(constants) if text))


def _computed_code_makers(tree: ast.Module) -> Iterator[str]:
    """Yield the variables that hold the type of code objects: cloudpickle looks it up by a call."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call(args=[ast.Constant(value="CodeType")])):
                yield variable


def _strings(node: ast.expr) -> Iterator[str]:
    for element in getattr(node, "elts", ()):
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield _shorten(element.value)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}... ({len(text)} characters)"


class _Abbreviate(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, bytes):
            return ast.Name(f"<{len(node.value)} bytes>")
        return ast.Constant(_shorten(node.value)) if isinstance(node.value, str) else node
