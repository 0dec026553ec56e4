"""Runs programs that are compiled, instead of the operators of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from logitport.programs.runtime.failures import nan_error, unfit_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.errors import ProcessorFailed
    from logitport.programs.columns import Columns
    from logitport.programs.verifier import Verified

# Bits of the status of a row.
HAS_NAN, UNFIT = 1, 2


class CompiledProgram(Protocol):
    """A program as a function, for the logits that it was found for."""

    def run(
        self, verified: Verified, logits: torch.Tensor, rows: Sequence[int], columns: Columns, *, threads: int
    ) -> NDArray[Any]:
        """Run it on rows, in place. Returns uint8[rows]: HAS_NAN, UNFIT, their sum or 0."""


class CompiledPrograms(Protocol):
    """The programs that are compiled."""

    def find(self, verified: Verified, logits: torch.Tensor, threads: int) -> CompiledProgram | None:
        """A compiled program, if it is ready, and fits logits of this dtype, device and layout. Returns at once."""


def run_compiled(
    compiled: CompiledProgram,
    verified: Verified,
    logits: torch.Tensor,
    rows: Sequence[int],
    columns: Columns,
    *,
    may_be_nan: bool,
) -> dict[int, ProcessorFailed]:
    """Run a compiled program on rows, in place. Returns the failed ones.

    Args:
        compiled: the program, for these logits.
        verified: the program.
        logits: [rows, vocab_size].
        rows: ascending rows.
        columns: parameters of each of the rows.
        may_be_nan: whether the result may have NaN for logits without NaN; otherwise NaN is no failure.
    """
    status = compiled.run(verified, logits, rows, columns, threads=torch.get_num_threads())
    if not status.any():
        return {}
    name, failed = verified.program.name, {}
    for row, state in zip(rows, status.tolist(), strict=True):
        if state & UNFIT:
            failed[row] = unfit_error(name)
        elif state & HAS_NAN and may_be_nan:
            failed[row] = nan_error(name)
    return failed
