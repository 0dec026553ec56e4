"""Runs programs on rows of numpy logits, in place, with the interpreter: for engines and servers without torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from logitport.core.history import History
from logitport.errors import LimitExceeded, ProcessorFailed, RequestsFailed
from logitport_programs.reference import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport_programs.parameters import Columns
    from logitport_programs.request_tokens import RequestTokens
    from logitport_programs.verifier import Verified


# Of the largest element type.
_ELEMENT_BYTES = 8
_MAX_BYTES = 1 << 30


class ReferenceRunner:
    """Runs programs without torch. It has the interface of `logitport_programs.runtime.program_runner.Runner`.

    Args:
        max_bytes: limit of the memory of one row's values; the interpreter keeps all of them until the row's end.
    """

    def __init__(self, *, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes

    def apply(
        self,
        verified: Verified,
        logits: NDArray[Any],
        rows: Sequence[int],
        params: Columns,
        histories: Sequence[RequestTokens] = (),
    ) -> dict[int, ProcessorFailed]:
        """Run a program on rows of the logits, in place. The other rows stay as they are.

        Args:
            verified: the program.
            logits: float32, float16, or bfloat16 of ml_dtypes [rows, vocab_size].
            rows: ascending rows.
            params: parameters of each of the rows.
            histories: the ids of each of the rows; may be left out if the program does not read them.

        Returns:
            The failed rows: a NaN in the result, or a number that int64 cannot hold.

        Raises:
            InvalidArgument, LimitExceeded: as `reference.run`.
            LimitExceeded: a row needs too much memory.
        """
        if logits.ndim == 2:  # else `run` raises
            self._check_memory(verified, logits.shape[1])
        indices = list(rows)
        selected = logits[indices]
        read = [tokens.history for tokens in histories] or [History()] * len(indices)
        failed: dict[int, ProcessorFailed] = {}
        try:
            result = run(verified, selected, params.values, read)
        except RequestsFailed as error:
            result = cast("NDArray[Any]", error.result)
            failed = {indices[at]: cast("ProcessorFailed", each) for at, each in error.failures.items()}
        name = verified.program.name
        for at in np.flatnonzero(np.isnan(result).any(axis=1)).tolist():
            message = f"program {name} returned NaN in a row; return numbers, or -inf for ids not to be sampled"
            failed.setdefault(indices[at], ProcessorFailed(message, processor=name))
        logits[indices] = result
        return failed

    def _check_memory(self, verified: Verified, vocab_size: int) -> None:
        elements = sum(math.prod(verified.shape(index, 1, vocab_size)) for index in range(len(verified.types)))
        if elements * _ELEMENT_BYTES > self._max_bytes:
            raise LimitExceeded(
                f"program {verified.program.name!r} needs {elements * _ELEMENT_BYTES} bytes for a row of {vocab_size} "
                f"logits; the limit is {self._max_bytes}: use fewer values, or smaller ones"
            )
