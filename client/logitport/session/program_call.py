"""A program in the chain of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from logitport_programs.parameters import Checked
    from logitport_programs.verifier import Verified


class ProgramCall(NamedTuple):
    """One program of a chain.

    Attributes:
        verified: the program.
        values: the value of each of its parameters, checked.
        milliseconds: the longest time that the program takes for a row here.
        processor: the processor's key: a built-in's name, or the digest.
    """

    verified: Verified
    values: tuple[Checked, ...]
    milliseconds: float
    processor: str
