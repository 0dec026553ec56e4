"""Runs the programs of all sessions with the memory of one runner, or without torch by the interpreter."""

from __future__ import annotations

import math
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from logitport.core.tensors import is_torch
from logitport.errors import LimitExceeded, ProcessorFailed
from logitport_programs.runtime.reference_runner import ReferenceRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_programs.parameters import Columns
    from logitport_programs.request_tokens import RequestTokens
    from logitport_programs.runtime.program_runner import Runner
    from logitport_programs.verifier import Verified

# Of one run, and of all constants that are kept.
_MAX_BYTES = 512 << 20
# Elements times operators of one run, for each thread of torch: some 30 ms. numpy has one thread.
_MAX_WORK = 1 << 25
# A GPU computes this many times faster.
_GPU_FACTOR = 64
# A sort takes as long as this many other operators.
_SORT = 128


class SharedRunner:
    """Runs programs, a few rows at a time. Thread-safe.

    Between such parts, a thread releases the memory to others.
    """

    def __init__(self, *, max_work: int = _MAX_WORK, max_bytes: int = _MAX_BYTES) -> None:
        self._numpy_runner: Runner | ReferenceRunner = ReferenceRunner(max_bytes=max_bytes)
        self._max_bytes = max_bytes
        self._max_work = max_work
        self._lock = threading.Lock()

    def apply(
        self,
        verified: Verified,
        logits: Any,
        columns: Callable[[int, int], Columns],
        histories: Sequence[RequestTokens],
        seconds: float = math.inf,
    ) -> dict[int, ProcessorFailed]:
        """Run a program on all rows of the logits, in place.

        Args:
            verified: the program.
            logits: float[rows, vocab_size], a torch tensor or a numpy array.
            columns: returns the parameters of the rows from one index to another.
            histories: the ids of each row; empty if the program does not read them.
            seconds: after this time, with what other threads compute in between, the rows that are left are not
                processed.

        Returns:
            The failed rows, as `Runner.apply`, and those that were not processed.

        Raises:
            LimitExceeded: one row needs too much memory.
            LogitportError: as `Runner.apply`.
        """
        height = len(logits)
        failed: dict[int, ProcessorFailed] = {}
        deadline = time.monotonic() + seconds
        runner = self._torch_runner if is_torch(logits) else self._numpy_runner
        begin, rows = 0, self._rows_at_once(verified, logits)
        while begin < height:
            if begin and time.monotonic() > deadline:
                return failed | dict.fromkeys(range(begin, height), _timed_out(verified.program.name))
            end = min(begin + rows, height)
            parameters = columns(begin, end)
            try:
                with self._lock:
                    failed |= runner.apply(verified, logits, range(begin, end), parameters, histories[begin:end])
            except LimitExceeded:  # no row has run
                if end - begin == 1:
                    raise
                rows = (end - begin) // 2
            else:
                begin = end
        return failed

    @cached_property
    def _torch_runner(self) -> Runner | ReferenceRunner:
        from logitport_programs.runtime.program_runner import Runner

        return Runner(max_bytes=self._max_bytes)

    def _rows_at_once(self, verified: Verified, logits: Any) -> int:
        operators = sum(_SORT if value.operator == "argsort" else 1 for value in verified.program.values)
        factor = 1
        if is_torch(logits):
            import torch

            factor = torch.get_num_threads() if logits.device.type == "cpu" else _GPU_FACTOR
        # A list of ids is padded to its largest length in each row.
        width: int = logits.shape[1]
        longest = max(width, sum(parameter.length for parameter in verified.program.parameters))
        return max(1, self._max_work * factor // (operators * longest))


def _timed_out(name: str) -> ProcessorFailed:
    return ProcessorFailed(
        f"program {name} did not process all rows in the time of this step (--processor-timeout-seconds): use a "
        "program with fewer operators, or send fewer rows",
        processor=name,
        code=ProcessorFailed.TIMED_OUT,
    )
