"""Assembler for seccomp filters: classic BPF over the kernel's `struct seccomp_data` (seccomp(2))."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Verdicts. KILL ends the process: if only one thread ended, the others would wait for its locks.
ALLOW = 0x7FFF_0000
KILL = 0x8000_0000
_ERRNO = 0x0005_0000

# Operations of linux/bpf_common.h. AND and the comparisons use the last loaded word.
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06

# Offsets in `struct seccomp_data`. An argument has 64 bits; BPF loads 32 of them; the architectures are little-endian.
_NUMBER, _ARCHITECTURE, _ARGUMENTS, _UPPER_WORD = 0, 4, 16, 4

# Numbers from here on belong to x32, a second ABI of x86_64. No other architecture uses them.
_X32_NUMBERS = 0x4000_0000


def fail_with(number: int) -> int:
    """Verdict: the call is not made, and fails with this errno."""
    return _ERRNO | number


@dataclass(frozen=True)
class Match:
    """A verdict that depends on one argument: ALLOW if it is one of the values.

    Attributes:
        argument: index of the argument.
        values: values below 2**32.
        otherwise: verdict for every other value.
        mask: bits of the lower word that are compared, where the kernel ignores the others. None compares all 64 bits.
    """

    argument: int
    values: tuple[int, ...]
    otherwise: int
    mask: int | None = None


def assemble(architecture: int, verdicts: Mapping[int, int | Match], otherwise: int) -> bytes:
    """Return the filter as BPF, eight bytes an instruction.

    Calls are compared one after the other. A search tree would gain little: from Linux 5.11 on, the kernel does not run
    the filter for calls that it always allows.

    Args:
        architecture: AUDIT_ARCH constant. Calls by another architecture's ABI end the process, as x32's do.
        verdicts: verdicts by the call's number.
        otherwise: verdict for every other call.
    """
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_IF_EQUAL, architecture, otherwise=2),
        _instruction(_LOAD, _NUMBER),
        _instruction(_IF_AT_LEAST, _X32_NUMBERS, otherwise=1),
        _instruction(_RETURN, KILL),
    ]
    for number, verdict in verdicts.items():
        block = _match(verdict) if isinstance(verdict, Match) else [_instruction(_RETURN, verdict)]
        program += [_instruction(_IF_EQUAL, number, otherwise=len(block)), *block]
    return b"".join([*program, _instruction(_RETURN, otherwise)])


def _match(match: Match) -> list[bytes]:
    """Instructions that end the filter with a verdict on the argument."""
    lower = _ARGUMENTS + 8 * match.argument
    block: list[bytes] = []
    if match.mask is None:
        block += [
            _instruction(_LOAD, lower + _UPPER_WORD),
            _instruction(_IF_EQUAL, 0, then=1),
            _instruction(_RETURN, match.otherwise),
        ]
    block.append(_instruction(_LOAD, lower))
    if match.mask is not None:
        block.append(_instruction(_AND, match.mask))
    for value in match.values:
        block += [_instruction(_IF_EQUAL, value, otherwise=1), _instruction(_RETURN, ALLOW)]
    return [*block, _instruction(_RETURN, match.otherwise)]


def _instruction(operation: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """`struct sock_filter`; `then` and `otherwise` are how many instructions a comparison skips."""
    return struct.pack("<HBBI", operation, then, otherwise, value)
