"""The memory in which a worker finds the logits of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from logitport_server.regions import Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport_server.executors.zygote import WorkerProcess

_numbers = count(1)


@dataclass(frozen=True)
class _Mapping:
    """A region, and the number by which the worker knows it, which none gets again."""

    number: int
    region: Region


class SharedRows:
    """A region of one processor's own, into which its rows are copied, and which grows on demand.

    Where a session's region holds no other rows, it may be lent: rows that lie there stay there.
    """

    def __init__(self) -> None:
        self._own: _Mapping | None = None
        self._rows: torch.Tensor | None = None
        self._lent: _Mapping | None = None
        # The process that maps some of this; what of it; and what it need not keep.
        self._holder: WorkerProcess | None = None
        self._held: set[int] = set()
        self._gone: list[int] = []

    def rows(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """float[rows, vocab_size], uninitialised, of the width and dtype of `like`."""
        here = self._rows
        if here is None or len(here) < rows or here.dtype != like.dtype or here.shape[1] != like.shape[1]:
            here = self._replace(rows, like)
        return here[:rows]

    def borrow(self, region: Region | None) -> None:
        """From now on rows that lie in this region are handed over in place; None: no more."""
        if region is None or self._lent is None or self._lent.region is not region:
            if self._lent is not None:
                self._gone.append(self._lent.number)
            self._lent = None if region is None else _Mapping(next(_numbers), region)

    def hand_over(
        self, logits: torch.Tensor, process: WorkerProcess, header: dict[str, Any]
    ) -> tuple[torch.Tensor, Sequence[int]]:
        """Make the header of a call name the logits, which are copied unless the worker can reach them.

        Returns:
            The logits in the memory that the worker writes to, and the descriptors that must travel with the header.
        """
        mapping, handed, offset = self._place(logits)
        header |= {
            "in": mapping.number,
            "offset": offset,
            "shape": list(handed.shape),
            "dtype": str(handed.dtype).removeprefix("torch."),
        }
        if self._holder is not process:
            self._holder, self._held, self._gone = process, set(), []
        if self._gone:
            header["memory_gone"], self._gone = self._gone, []
        if mapping.number in self._held:
            return handed, ()
        self._held.add(mapping.number)
        header["memory"] = [[mapping.number, mapping.region.size_bytes]]
        return handed, [mapping.region.fd]

    def _place(self, logits: torch.Tensor) -> tuple[_Mapping, torch.Tensor, int]:
        if self._lent is not None:
            offset = self._lent.region.offset_of(logits)
            if offset is not None:
                return self._lent, logits, offset
        handed = self.rows(len(logits), logits)
        if handed.data_ptr() != logits.data_ptr():
            handed.copy_(logits)
        assert self._own is not None  # noqa: S101 - it has the rows
        return self._own, handed, 0

    def _replace(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        width = like.shape[1]
        region = Region(rows * width * like.dtype.itemsize)
        if self._own is not None:
            self._gone.append(self._own.number)
            self._own.region.close()
        self._own = _Mapping(next(_numbers), region)
        self._rows = region.tensor(0, (rows, width), like.dtype)
        return self._rows

    def __del__(self) -> None:
        if self._own is not None:
            self._own.region.close()
