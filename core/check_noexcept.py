"""Find code in functions of the compiled core that must not throw, and could: an exception there ends the process.

    python core/check_noexcept.py [FOLDER]    # by default core/src; exits with 1 if there is any

These are functions that are `noexcept`, and destructors, which are so by default. clang-tidy has a check for them,
bugprone-exception-escape, which takes functions of the C++ library whose bodies it does not see for ones that do not
throw. Code in a `try` block may throw if a handler takes all exceptions. A call is judged by its name.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Functions and types of the C++ library that check a range, get memory, or open a source of random numbers.
_THROWING_CALLS = (
    r"(?:substr|at|value|push_back|push_front|emplace\w*|try_emplace|insert\w*|resize|reserve|append|assign|replace"
    r"|shrink_to_fit|stoi|stol|stoul|stoull|stod|to_string|make_unique|make_shared|allocate)"
)
_THROWING_WORDS = (
    r"(?:throw|new|dynamic_cast|std::(?:string|vector|map|set|unordered_\w+|function|thread|random_device)"
    r"|(?:nb|nanobind)::(?!dlpack|gil_scoped_)\w+)"
)
_THROWS = re.compile(rf"(?<![\w:]){_THROWING_WORDS}\b(?!\s*[*&])|(?<!\w){_THROWING_CALLS}(?=\s*(?:<[^<>();]*>)?\s*\()")
# Members of the C++ library that do not throw, and have the name of a function of the core that does.
_TOTAL = frozenset({"empty", "find"})

_NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|^[ \t]*\#(?:\\\n|[^\n])*""", re.DOTALL | re.MULTILINE
)
_ARGUMENTS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_FUNCTION = re.compile(
    rf"(?P<name>~?\b[A-Za-z]\w*|operator\W{{1,3}}|\])\s*{_ARGUMENTS}(?P<suffix>(?:\s*(?:const|mutable|override|final"
    r"|noexcept(?:\s*\((?:true|false)\))?|&{1,2}|->\s*[\w:<>&*\s]+?))*)\s*(?P<begin>try\b|[{:])"
)
_KEYWORDS = frozenset({"if", "for", "while", "switch", "catch", "return", "decltype", "alignas", "defined", "case"})
_INITIALIZER = re.compile(rf"[:,]\s*[\w:]+(?:<[^<>;]*>)?\s*(?:(?P<arguments>{_ARGUMENTS})|(?=\{{))\s*")
_HANDLER = re.compile(r"\s*catch\s*\([^()]*\)\s*(?=\{)")
_HANDLES_ALL = re.compile(r"\s*catch\s*\(\s*(?:\.\.\.|const\s+std::exception\s*&\s*\w*)\s*\)\s*")
_SPACE = re.compile(r"\s*")


class FunctionDefinition(NamedTuple):
    """A function with a body.

    Attributes:
        name: its name without its class; `]` for a lambda.
        is_noexcept: whether an exception that leaves it ends the process.
        begin: offset of its initializers or its body.
        end: offset behind its body.
    """

    name: str
    is_noexcept: bool
    begin: int
    end: int


def find(folder: Path) -> list[str]:
    """Return the findings in all sources below a folder, each with its file and line."""
    sources = {path: code_of(path.read_text()) for path in sorted(folder.rglob("*")) if path.suffix in (".h", ".cpp")}
    functions = {path: list(functions_of(code)) for path, code in sources.items()}
    may_throw = throwing_names(function for found in functions.values() for function in found)
    findings = []
    for path, code in sources.items():
        for function in functions[path]:
            if function.is_noexcept:
                for offset, what in throwing(code, function, may_throw):
                    line = code.count("\n", 0, offset) + 1
                    findings.append(f"{path}:{line}: {function.name} must not throw, and `{what}` may")
    return findings


def code_of(text: str) -> str:
    """Return a text without its comments, literals and directives, which become spaces. Lines keep their numbers."""
    return _NOT_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def functions_of(code: str) -> Iterator[FunctionDefinition]:
    """Find the functions that have a body."""
    for match in _FUNCTION.finditer(code):
        name, suffix = match["name"].strip(), match["suffix"]
        is_initializer = name.endswith("_")
        if is_initializer or name in _KEYWORDS:
            continue
        end = _end_of_body(code, match.start("begin"))
        if end is not None:
            is_noexcept = "noexcept" in suffix and not re.search(r"noexcept\s*\(false\)", suffix)
            yield FunctionDefinition(name, is_noexcept or name.startswith("~"), match.start("begin"), end)


def throwing_names(functions: Iterable[FunctionDefinition]) -> frozenset[str]:
    """Return the names that only functions which are not noexcept have: a call of one of them may throw."""
    may_throw: set[str] = set()
    total: set[str] = set()
    for function in functions:
        (total if function.is_noexcept else may_throw).add(function.name)
    return frozenset(may_throw - total - _TOTAL)


def throwing(code: str, function: FunctionDefinition, may_throw: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Find the code of a function that may throw, outside of `try` blocks that handle all exceptions."""
    body = _without_handled(code[function.begin : function.end])
    for match in _THROWS.finditer(body):
        yield function.begin + match.start(), match[0]
    for match in re.finditer(r"(?<![\w~])([A-Za-z_]\w*)\s*\(", body):
        if match[1] in may_throw and not _THROWS.match(body, match.start()):
            yield function.begin + match.start(), match[1]


def _without_handled(body: str) -> str:
    """Return a body without the `try` blocks whose exceptions are all handled."""
    for match in re.finditer(r"\btry\b\s*(?=\{)", body):
        end = _closing(body, match.end())
        if _HANDLES_ALL.match(body, end):
            body = body[: match.end()] + re.sub(r"[^\n]", " ", body[match.end() : end]) + body[end:]
    return body


def _end_of_body(code: str, begin: int) -> int | None:
    """Return the offset behind a body that begins with `{`, `try` or initializers; None if it is no body."""
    if code.startswith("try", begin):
        end = _closing(code, code.index("{", begin))
        while handler := _HANDLER.match(code, end):
            end = _closing(code, handler.end())
        return end
    position = begin
    while initializer := _INITIALIZER.match(code, position):
        position = initializer.end()
        if code[position] == "{" and not initializer["arguments"]:  # NAME{VALUE}
            position = _SPACE.match(code, _closing(code, position)).end()  # type: ignore[union-attr] # it may be empty
    return _closing(code, position) if code[position] == "{" else None


def _closing(code: str, begin: int) -> int:
    """Return the offset behind the brace that closes the one at `begin`."""
    depth = 0
    for position in range(begin, len(code)):
        depth += {"{": 1, "}": -1}.get(code[position], 0)
        if depth == 0:
            return position + 1
    raise SystemExit("a brace is not closed")


def main() -> int:
    """Print the findings. Returns 1 if there are any."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("src")
    findings = find(folder)
    for finding in findings:
        print(finding)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
