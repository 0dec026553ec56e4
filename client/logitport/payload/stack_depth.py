"""Checks the stack depth of bytecode: at each instruction it must be the same on every path.

The compiler computes the same (CPython, Python/compile.c, `stackdepth`) to fill in `co_stacksize`, and the effect of
each instruction is public (`dis.stack_effect`), so code of the running version always passes.
"""

from __future__ import annotations

import dis
import opcode
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The argument of END_ASYNC_FOR (3.14) is the loop's start, for monitoring tools only; the instruction does not jump.
_JUMPS = {*opcode.hasjrel, *opcode.hasjabs} - {opcode.opmap.get("END_ASYNC_FOR")}
_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"}
_GOTOS = {"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_GENERATOR_FLAGS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
_JUMPS_COUNT_FROM_AFTER_CACHES = sys.version_info >= (3, 12)


def depth_problem(instructions: Mapping[int, tuple[int, int, int]], code: Mapping[str, Any]) -> str:
    """Describe what is wrong with the stack or the jumps; "" if nothing is.

    Args:
        instructions: offset to (opcode, argument, offset of what follows it and its inline caches).
        code: as for `bytecode.misfit`.
    """
    try:
        return _walk(instructions, code)
    except (ValueError, OverflowError) as error:  # from dis.stack_effect, for an argument that no compiler writes
        return f"an instruction is invalid: {error}"


def _walk(instructions: Mapping[int, tuple[int, int, int]], code: Mapping[str, Any]) -> str:
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
