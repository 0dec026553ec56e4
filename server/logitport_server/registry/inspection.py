"""What a payload would import and do, found out without running any of it.

The pickle is read by fickling (Trail of Bits), which turns it into the Python that unpickling amounts to.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fickling.fickle import Pickled  # type: ignore[import-untyped]

from logitport.errors import MalformedPayload

if TYPE_CHECKING:
    from collections.abc import Iterator

_CODE_MAKERS = ("_create_code", "CodeType")
_LONGEST = 200


@dataclass(frozen=True)
class Function:
    """A function that travels in the payload; unpickling does not call it, using the processor does.

    Attributes:
        name: qualified.
        uses: names of modules, attributes and globals in its code.
        strings: in its code.
    """

    name: str
    uses: tuple[str, ...]
    strings: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """What is in a pickle.

    Attributes:
        imports: what unpickling imports, as "from module import name".
        statements: what unpickling does, as Python; code and other bytes are abbreviated.
        functions: that it carries.
    """

    imports: tuple[str, ...]
    statements: tuple[str, ...]
    functions: tuple[Function, ...]


def inspect_pickle(data: bytes) -> Inspection:
    """Look into a pickle. Raises MalformedPayload if it cannot be followed, which is a reason not to run it."""
    try:
        tree = Pickled.load(data).ast
        statements = [node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
        imports = [ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        functions = tuple(_functions(tree))
        shown = [ast.unparse(_Abbreviated().visit(node)) for node in statements]
    except RecursionError as error:
        raise MalformedPayload("the pickle is nested too deeply to be followed; do not run it") from error
    except MalformedPayload:
        raise
    except Exception as error:
        raise MalformedPayload(f"the pickle cannot be followed ({error}); do not run it") from error
    return Inspection(tuple(dict.fromkeys(imports)), tuple(shown), functions)


def _functions(tree: ast.Module) -> Iterator[Function]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CODE_MAKERS):
            continue
        # Whatever the Python version, the first tuple is the constants; names, variables, file and names follow.
        at = next((at for at, argument in enumerate(node.args) if isinstance(argument, ast.Tuple)), len(node.args))
        constants, names, _, _, *titles = node.args[at:] + [ast.Constant(None)] * 6
        title = next((text for text in reversed(list(_strings(ast.Tuple(titles[:2])))) if text), "?")
        yield Function(title, tuple(_strings(names)), tuple(text for text in _strings(constants) if text))


def _strings(node: ast.expr) -> Iterator[str]:
    for element in getattr(node, "elts", ()):
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield _shorten(element.value)


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


class _Abbreviated(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, bytes):
            return ast.Name(f"<{len(node.value)} bytes>")
        return ast.Constant(_shorten(node.value)) if isinstance(node.value, str) else node
