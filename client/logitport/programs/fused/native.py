"""The compiled function of a program."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport.programs.fused.source import ENTRY
from logitport.programs.types import Element

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from logitport.programs.columns import Columns
    from logitport.programs.program import Parameter
    from logitport.programs.verifier import Verified

# Of fewer elements, starting threads takes longer than the work. It is torch's own limit.
_MIN_PARALLEL = 32768


class Memory(NamedTuple):
    """Float32 logits.

    Attributes:
        address: of the first element.
        stride: distance of two rows in elements.
        width: elements of a row.
    """

    address: int
    stride: int
    width: int


class Native:
    """A loaded function. Threads may call it at the same time, on different rows.

    Args:
        path: the shared object. Loading it runs nothing.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it is not the object of a program.
    """

    def __init__(self, path: Path) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._call = ctypes.CDLL(str(path))[ENTRY]
        self._call.restype = None
        self._call.argtypes = [
            *(pointer, number, pointer, number, number, pointer, number, pointer, number, pointer),
        ]

    def run(
        self, verified: Verified, logits: torch.Tensor, rows: Sequence[int], columns: Columns, *, threads: int
    ) -> NDArray[np.uint8]:
        """Run the program on rows of the logits, in place.

        Args:
            verified: the program of the function.
            logits: float32 [rows, vocab_size] for which `is_fit` is true.
            rows: rows of the logits, each once.
            columns: parameters of each of the rows.
            threads: of torch's pool, at most.

        Returns:
            For each of the rows, the sum of HAS_NAN if the result has a NaN, and UNFIT if a number was cast to int64
            that int64 cannot hold.
        """
        if len(rows) * logits.shape[1] < _MIN_PARALLEL:
            threads = 1
        memory = Memory(logits.data_ptr(), logits.stride(0), logits.shape[1])
        return self.run_at(verified, memory, rows, columns, parallel() if threads > 1 else None, threads)

    def run_at(
        self,
        verified: Verified,
        memory: Memory,
        rows: Sequence[int],
        columns: Columns,
        parallel: int | None = None,
        threads: int = 1,
    ) -> NDArray[np.uint8]:
        """As `run`, with the address of GOMP_parallel; None for one thread."""
        places = np.asarray(rows, np.int64)
        params = _slots(verified.program.parameters, columns, len(places))
        status = np.empty(len(places), np.uint8)
        self._call(
            parallel,
            min(threads, len(places)),
            *memory,
            places.ctypes.data,
            len(places),
            params.ctypes.data,
            params.shape[1],
            status.ctypes.data,
        )
        return status


def is_fit(logits: torch.Tensor) -> bool:
    """Whether a function can compute on the memory of these logits, as far as their type and layout matter."""
    import torch

    return (
        type(logits) is torch.Tensor
        and logits.dtype is torch.float32
        and logits.device.type == "cpu"
        and logits.layout is torch.strided
        and logits.shape[1] > 0
        and logits.stride(1) == 1
        and (logits.stride(0) >= logits.shape[1] or logits.shape[0] == 1)
        and not logits.is_neg()
    )


@functools.cache
def parallel() -> int | None:
    """The address of GOMP_parallel in torch's OpenMP library, with the threads that are used; None if it has none."""
    import torch  # noqa: F401 - loads its library, where all can find it

    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _slots(parameters: Sequence[Parameter], columns: Columns, rows: int) -> NDArray[np.int64]:
    slots = np.zeros((rows, max(1, len(parameters))), np.int64)
    for place, parameter in enumerate(parameters):
        numbers: Any = columns.values[parameter.name]
        if parameter.element is Element.FLOAT32:
            numbers = np.asarray(numbers, np.float32).view(np.uint32)
        slots[:, place] = numbers
    return slots
