"""A name means one thing: no two classes of the product share a name, and no further files do."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = ("client", "server", "builtin_processors", "core", "proto")

# Names that several classes may have, with the reason.
SHARED_CLASSES = {
    "LogitsProcessor": "the name that transformers and vLLM give it: their stubs define the same names",
    "RemoteLogitsProcessor": "the public name of each engine's hook, which its users import from the engine's module",
}

# Names that any number of files may have: the first two belong to Python, the others to a folder's interface and class.
COMMON_FILES = {"__init__", "__main__", "base", "processor"}

# Other names that several files have, by their number. No name may be added, and no number may grow.
SHARED_FILES = {
    2: """
        activity admin admissions chains checking checks child choice compiled effects engine frames generate
        hosting installed interface interpreter isolation launcher options output parameters plan plugin
        program records reductions refusals registry remote replay replays report request request_spec rows
        runner serve server session stream texts tokenizers tokens top tracing v1 v2
    """,
    3: "edits embedded gpu guard memory messages state zygote",
    4: "admission files processors",
    5: "limits",
}


def product_files() -> Iterator[Path]:
    """Yield the Python files of the product, apart from generated ones."""
    for distribution in DISTRIBUTIONS:
        for path in sorted((ROOT / distribution).rglob("*.py")):
            if "build" not in path.relative_to(ROOT).parts and not path.stem.endswith(("_pb2", "_pb2_grpc")):
                yield path


def classes_of(statements: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names of the classes of a module, apart from those inside classes and functions."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef):
            yield statement.name
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from classes_of(ast.iter_child_nodes(statement))


def places(named: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Return the files of each name that has several."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, path in named:
        found[name].append(path.relative_to(ROOT).as_posix())
    return {name: paths for name, paths in found.items() if len(set(paths)) > 1}


def test_no_two_classes_share_a_name() -> None:
    found = places((name, path) for path in product_files() for name in classes_of(ast.parse(path.read_text()).body))
    new = {name: paths for name, paths in found.items() if name not in SHARED_CLASSES}
    assert not new, "give the less public class a more exact name"
    assert found.keys() == SHARED_CLASSES.keys(), "remove the exceptions that no classes share any more"


def test_no_further_files_share_a_name() -> None:
    found = places((path.stem, path) for path in product_files() if path.stem not in COMMON_FILES)
    listed = {name: number for number, names in SHARED_FILES.items() for name in names.split()}
    new = {name: paths for name, paths in found.items() if len(paths) > listed.get(name, 1)}
    assert not new, "give the new file another name"
    assert {name: len(paths) for name, paths in found.items()} == listed, "list the lower numbers"


def test_classes_under_conditions_count_and_local_ones_do_not() -> None:
    module = ast.parse("if a:\n class A: ...\nclass B:\n class C: ...\ndef f():\n class D: ...")
    assert list(classes_of(module.body)) == ["A", "B"]
