"""Captures a `TensorProcessor` as a program.

tracing      runs `process` on tensors without values, and records torch's operators
state        what a processor keeps between calls
graph        goes through the operators, and calls the lowering of each
elementwise, reductions, indexing
             lower torch's operators to operators of programs
lowering     what they share: types, sizes, broadcasting
builder      the values of the program
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from logitport.errors import InvalidArgument, LimitExceeded, NotCapturable, NotInstalled
from logitport.system.installation import how_to_install

try:
    import torch
except ModuleNotFoundError as error:
    raise NotInstalled(
        f"a class is captured as a program with torch ({error}); install it {how_to_install('torch')}"
    ) from error

from logitport_lint import DISCARD, find
from logitport_programs.authoring.processor import TensorProcessor
from logitport_programs.capturing.graph import Graph
from logitport_programs.capturing.operator_tracing import Conditions, definition, trace
from logitport_programs.verifier import MAX_NAME_LENGTH, verify

if TYPE_CHECKING:
    from logitport_programs.program import Program

__all__ = ["capture", "capture_as"]

# In the element type of the logits, float16 differs from float32. A second dtype shows which values depend on it.
_CONDITIONS = (
    Conditions(torch.float16, rows=3, vocab_size=5003, seed=1, seconds=0.0),
    Conditions(torch.bfloat16, rows=5, vocab_size=7001, seed=2, seconds=100_003.25),
)


def capture(cls: type[TensorProcessor]) -> Program:
    """Make a program of a processor. `process` runs twice, on tensors without values.

    The program is what `process` computes for logits of at least 4096 elements a row.

    Raises:
        NotCapturable: the message has the author's file and line, the cause, and what to write instead. Code that has
            no effect on the logits, changes state, or draws random numbers is refused, too.
    """
    if not (isinstance(cls, type) and issubclass(cls, TensorProcessor)):
        raise NotCapturable(
            f"{cls!r} is not a subclass of TensorProcessor: only those can be captured; lift() takes other processors"
        )
    discarded = "".join(f"; {one}" for one in find(cls, {DISCARD}))
    try:
        program = capture_as(cls)
    except NotCapturable as error:
        if not discarded:
            raise
        raise NotCapturable(f"{error.message}{discarded}") from error
    if is_identity(program):
        raise NotCapturable(f"{definition(cls)}: process returns the logits as they are{discarded}")
    return program


def is_identity(program: Program) -> bool:
    """Whether a program returns the logits as they are."""
    return [value.operator for value in program.values] == ["logits"]


def capture_as(cls: type[TensorProcessor], *, one_row: bool = False, check_state: bool = True) -> Program:
    """Make a program of a processor. Its `process` may take one row.

    Args:
        cls: the processor.
        one_row: whether `process` takes the tensors of one row, without the dimension of rows: float[vocab].
        check_state: whether to refuse code that changes its instance, class or module.

    Raises:
        NotCapturable: as `capture`.
    """
    name = cls.__qualname__.rpartition(".")[2][:MAX_NAME_LENGTH]
    (program, lines), (other, _) = [
        Graph(
            trace(cls, conditions, one_row=one_row, check_state=check_state),
            cls.parameters(),
            cls.window,
            definition(cls),
        ).program(name)
        for conditions in _CONDITIONS
    ]
    if program != other:
        pairs = zip_longest(program.values, other.values)
        different = (index for index, (one, another) in enumerate(pairs) if one != another)
        where = next((line for index in different for line in lines[index : index + 1]), definition(cls))
        raise NotCapturable(
            f"{where}: two captures differ here: the code depends on a random number, the clock, a counter, or the "
            "dtype of the logits (torch.finfo, .half(), a number that float16 rounds): write -inf for the lowest logit"
        )
    try:
        verify(program)
    except (InvalidArgument, LimitExceeded) as error:
        raise NotCapturable(f"{definition(cls)}: {error.message}") from error
    return program
