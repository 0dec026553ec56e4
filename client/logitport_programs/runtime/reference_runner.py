"""Runs programs on rows of an engine's numpy logits, in place, with the interpreter: for engines without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from logitport.core.history import History
from logitport.errors import ProcessorFailed, RequestsFailed
from logitport_programs.reference import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport_programs.parameters import Columns
    from logitport_programs.request_tokens import RequestTokens
    from logitport_programs.verifier import Verified


class ReferenceRunner:
    """Runs programs without torch. It has the interface of `logitport_programs.runtime.runner.Runner`."""

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
        """
        places = list(rows)
        selected = logits[places]
        read = [tokens.history for tokens in histories] or [History()] * len(places)
        failed: dict[int, ProcessorFailed] = {}
        try:
            result = run(verified, selected, params.values, read)
        except RequestsFailed as error:
            result = cast("NDArray[Any]", error.result)
            failed = {places[at]: cast("ProcessorFailed", each) for at, each in error.failures.items()}
        name = verified.program.name
        for at in np.flatnonzero(np.isnan(result).any(axis=1)).tolist():
            message = f"program {name} returned NaN in a row; return numbers, or -inf for ids not to be sampled"
            failed.setdefault(places[at], ProcessorFailed(message, processor=name))
        logits[places] = result
        return failed
