"""A name means one thing: classes and files share none, and some words are in no name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
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

# Other names that two files have, with the reason.
SHARED_FILES = {
    "edits": "`logitport.edits` is public, and has the names that it exports from `logitport.core.edits`",
    "interface": "the name that vLLM gives it twice: the stubs of both of its runners have the same paths as in vLLM",
    "plugin": "what an engine loads, in the folder of each engine",
    "processors": "`logitport.processors` is public; the other is the command `logitport processors`",
    "replay": "`logitport_testing.replay`; the other is the command `logitport replay`",
    "v1": "vLLM's first runner: its hook, and its dialect",
    "v2": "vLLM's second runner: its hook, and its dialect",
}

# Words that no name has, in Python or C++, with the word to use.
BANNED_WORDS = {
    "anew": "again",
    "hosted": "loaded",
    "hosting": "loading",
    "octet": "byte",
    "octets": "bytes",
    "standin": "stub",
    "standins": "stubs",
    "told": "sent",
    "whom": "the name of the object",
}
# Further ones of the compiled core. In Python, a place is the index of a processor in a chain.
BANNED_IN_CORE = {
    "member": "request",
    "members": "requests",
    "place": "index, or entry",
    "places": "indices, or entries",
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


def words_of(names: Iterable[str]) -> set[str]:
    """Return the words of names in any style: `_BadPacket` has "bad" and "packet"."""
    return {word.lower() for name in names for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def names_in_python(text: str) -> Iterator[str]:
    """Yield the names of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.string


def names_in_cpp(text: str) -> list[str]:
    """Return the names of a C++ file, and its keywords."""
    return re.findall(r"[A-Za-z_]\w*", re.sub(r'//.*|"(?:\\.|[^"\\])*"', "", text))


def test_no_name_has_a_banned_word() -> None:
    texts = {path: path.read_text() for path in product_files()}
    some_word = re.compile("|".join(BANNED_WORDS), re.IGNORECASE)  # few files have one even in their comments
    found = {
        path: words_of(names_in_python(text)) & BANNED_WORDS.keys()
        for path, text in texts.items()
        if some_word.search(text)
    }
    for path in (ROOT / "core" / "src").rglob("*.[ch]*"):
        found[path] = words_of(names_in_cpp(path.read_text())) & (BANNED_WORDS | BANNED_IN_CORE).keys()
    assert not {path.relative_to(ROOT).as_posix(): words for path, words in found.items() if words}


def test_the_names_of_cpp_are_found() -> None:
    text = 'members_.at(place);  // whom\nconst char *kOctets = "told \\" anew";'
    assert words_of(names_in_cpp(text)) == {"members", "at", "place", "const", "char", "k", "octets"}


def test_no_two_classes_share_a_name() -> None:
    found = places((name, path) for path in product_files() for name in classes_of(ast.parse(path.read_text()).body))
    new = {name: paths for name, paths in found.items() if name not in SHARED_CLASSES}
    assert not new, "give the less public class a more exact name"
    assert found.keys() == SHARED_CLASSES.keys(), "remove the exceptions that no classes share any more"


def test_no_further_files_share_a_name() -> None:
    found = places((path.stem, path) for path in product_files() if path.stem not in COMMON_FILES)
    new = {name: paths for name, paths in found.items() if name not in SHARED_FILES or len(paths) > 2}
    assert not new, "give the new file another name"
    assert found.keys() == SHARED_FILES.keys(), "remove the exceptions that no files share any more"


def test_classes_under_conditions_count_and_local_ones_do_not() -> None:
    module = ast.parse("if a:\n class A: ...\nclass B:\n class C: ...\ndef f():\n class D: ...")
    assert list(classes_of(module.body)) == ["A", "B"]
