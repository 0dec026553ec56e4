"""The memory in which a worker finds the logits of its rows."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from logitport_server.regions import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport_server.executors.zygote import WorkerProcess

# Memory has a number of its own in a worker, which none gets again.
_numbers = count(1)


class SharedRows:
    """A region of one processor's own, into which its rows are copied, and which grows on demand."""

    def __init__(self) -> None:
        self._region: Region | None = None
        self._number = 0
        self._rows: torch.Tensor | None = None
        # The process that has it, and what that one has besides and need not keep.
        self._holder: WorkerProcess | None = None
        self._gone: list[int] = []

    def rows(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """float[rows, vocab_size], uninitialised, of the width and dtype of `like`."""
        here = self._rows
        if here is None or len(here) < rows or here.dtype != like.dtype or here.shape[1] != like.shape[1]:
            self._replace(rows, like)
        assert self._rows is not None  # noqa: S101 - it was made just now
        return self._rows[:rows]

    def hand_over(
        self, logits: torch.Tensor, process: WorkerProcess, header: dict[str, Any]
    ) -> tuple[torch.Tensor, Sequence[int]]:
        """Make the header of a call name the logits, which are copied here unless they are here.

        Returns:
            The logits in the memory that the worker writes to, and the descriptors that must travel with the header.
        """
        handed = self.rows(len(logits), logits)
        if handed.data_ptr() != logits.data_ptr():
            handed.copy_(logits)
        header |= {
            "in": self._number,
            "offset": 0,
            "shape": list(handed.shape),
            "dtype": str(handed.dtype).removeprefix("torch."),
        }
        if self._holder is process:
            return handed, ()
        assert self._region is not None  # noqa: S101 - it has the rows
        header["memory"] = [[self._number, self._region.size_bytes]]
        header["memory_gone"] = self._gone
        self._holder, self._gone = process, []
        return handed, [self._region.fd]

    def _replace(self, rows: int, like: torch.Tensor) -> None:
        if self._region is not None:
            self._gone.append(self._number)
            self._region.close()
        width = like.shape[1]
        self._region = Region(rows * width * like.dtype.itemsize)
        self._number = next(_numbers)
        self._rows = self._region.tensor(0, (rows, width), like.dtype)
        self._holder = None

    def __del__(self) -> None:
        if self._region is not None:
            self._region.close()
