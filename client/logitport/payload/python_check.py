"""Checks that a payload's code is of the running Python, from the payload alone, before anything is unpickled.

Code of another minor version loads without an error, and then crashes the process, raises, or silently gives wrong
results. A label is trusted only if it names another version. Otherwise the structure decides: the number of fields of a
code object, attributes that only newer versions give a class, and above all the bytecode (see `bytecode.misfit`). If
any part of the payload is of another version, the whole payload is refused. A payload of another version can pass only
if every instruction is the same in both versions, such as `return logits` in 3.11 and 3.12; such code runs correctly.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from logitport.errors import PayloadError
from logitport.payload.bytecode import RUNNING, misfit
from logitport.payload.pickle_reader import Contents, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport.payload.envelope import Payload

# The arguments of types.CodeType, in order, with their types, in 3.10 and in 3.11 to 3.14.
_FIELDS_310 = (
    *(("argcount", int), ("posonlyargcount", int), ("kwonlyargcount", int), ("nlocals", int), ("stacksize", int)),
    *(("flags", int), ("code", bytes), ("consts", tuple), ("names", tuple), ("varnames", tuple), ("filename", str)),
    *(("name", str), ("firstlineno", int), ("linetable", bytes), ("freevars", tuple), ("cellvars", tuple)),
)
_FIELDS_311 = (
    *_FIELDS_310[:12],
    *(("qualname", str), ("firstlineno", int), ("linetable", bytes), ("exceptiontable", bytes)),
    *_FIELDS_310[14:],
)
CODE_FIELDS = _FIELDS_310 if sys.version_info < (3, 11) else _FIELDS_311

# Attributes that the compiler gives every class: the first version that does so, and its name in messages.
_CLASS_MARKS = {
    "__firstlineno__": ((3, 13), "3.13 or newer"),
    "__static_attributes__": ((3, 13), "3.13 or newer"),
    "__annotate_func__": ((3, 14), "3.14 or newer"),
}
# The opcode of RESUME, which every code object begins with from 3.11 on.
_RESUME = {151: ("3.11", "3.12"), 149: ("3.13",), 128: ("3.14 or newer",)}


def check_python(payload: Payload) -> None:
    """Refuse code of another Python minor version. A payload without code fits every version.

    Raises:
        PayloadError: the payload's label or its code is of another version, or the version is unknown.
    """
    contents = read(payload.data)
    if not contents.codes and not contents.marshalled:
        return
    labelled = f"Python {payload.python[:20]}" if payload.python not in ("", RUNNING) else ""
    found, proof = (labelled, "its label says so") if labelled else next(_contradictions(contents), ("", ""))
    if not found:
        return
    raise PayloadError(
        f"the payload carries code of {found} ({proof}), but this is Python {RUNNING}: "
        f"ship it from Python {RUNNING}, or use a server that runs the Python of its author",
        code=PayloadError.PYTHON_MISMATCH,
    )


def _contradictions(contents: Contents) -> Iterator[tuple[str, str]]:
    """Yield (Python version, reason) for each contradiction, the best proof first."""
    if contents.marshalled:
        yield "an unknown Python", "it is marshalled, and marshal does not store the version"
    for key, (since, name) in _CLASS_MARKS.items():
        if key in contents.keys and sys.version_info < since:
            yield f"Python {name}", f"a class in it has {key}"
    for args in contents.codes:
        yield from _code_contradictions(args)


def _code_contradictions(args: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
    # dill writes a line table in the format of 3.9 before the fields of 3.10 and later.
    fields = args if isinstance(args[0], int) else args[1:]
    older = len(fields) < len(_FIELDS_310) or len(fields) == len(args) == len(_FIELDS_310)
    if older and RUNNING == "3.10":
        yield "Python 3.9 or older", "its code objects have no line table of 3.10"
    elif len(fields) != len(CODE_FIELDS):
        found = "Python 3.11 or newer" if len(fields) == len(_FIELDS_311) else "Python 3.10 or older"
        yield found, f"its code objects have {len(fields)} fields, not {len(CODE_FIELDS)}"
    else:
        code = {name: value for (name, _), value in zip(CODE_FIELDS, fields, strict=True)}
        wrong = [name for name, kind in CODE_FIELDS if not isinstance(code[name], kind)]
        if wrong:
            yield "an unknown Python", f"the {wrong[0]} of a code object is of the wrong type"
        elif problem := misfit(code):
            yield _guess(code["code"]), f"in {code['name'][:80]!r}, {problem}"


def _guess(raw: bytes) -> str:
    """Guess which other Python writes such bytecode; for the message only."""
    for op, arg in zip(raw[:64:2], raw[1:64:2], strict=False):
        others = [version for version in _RESUME.get(op, ()) if version != RUNNING and arg == 0]
        if others:
            return f"Python {' or '.join(others)}"
    return "another Python"
