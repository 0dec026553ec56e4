"""Reads the newest ids of vLLM's second runner, whose histories are on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


# How much longer than at `TokenTails.expect` the histories are at the next calls.
_ADDED = np.arange(1, 65, dtype=np.int32)


class TokenTails:
    """Reads vLLM's history of each slot: `all_token_ids`, valid up to `total_len`.

    On a GPU, a copy that is queued before the forward pass is on the host once the previous step is done. Waiting for
    it does not wait for the forward pass.

    Args:
        states: `LogitsProcRequestState`.
        length: the most ids that a step adds to a slot.
    """

    def __init__(self, states: Any, length: int) -> None:
        self._states = states
        self._length = length
        self._on_cuda = states.device.type == "cuda"
        self._slots: list[int] = []
        # All histories, flat, and their lengths; the slots, int64[slots], and the index of each newest id relative to
        # the end: int64[length, slots]. Tensors on the device, or arrays of numpy, which takes a fraction of torch's
        # time for few ids. None without slots.
        self._columns: Any = None
        self._fetching: tuple[torch.Tensor, Any] | None = None
        self._tails: dict[int, tuple[int, list[int]]] = {}
        # The lengths that the next calls of `next_ids` expect: int32[calls, slots]. They are computed for many steps,
        # because an addition of numpy takes longer than the rest of a call.
        self._expected: NDArray[Any] = np.empty((0, 0), np.int32)
        # Where the newest ids were at `expect`, int64[slots], and the number of calls since then.
        self._indices: NDArray[Any] = np.empty(0, np.int64)
        self._calls = 0

    def history(self, slot: int, length: int) -> list[int]:
        """Return the slot's first ids, read synchronously."""
        ids: list[int] = self._states.all_token_ids.gpu[slot, :length].tolist()
        return ids

    def fetch(self, slots: list[int]) -> None:
        """Let the other methods read these slots, until the next call. Does not copy the list: do not change it."""
        self._tails, self._fetching = {}, None
        if slots is not self._slots and slots != self._slots:
            self._slots, self._columns = slots, self._prepare(slots) if slots else None
        if self._on_cuda and self._columns is not None:
            histories, lengths, rows, columns = self._columns
            ends = lengths[rows]
            newest = torch.cat([ends[None], histories[columns + ends]])
            host = torch.empty(newest.shape, dtype=newest.dtype, pin_memory=True)
            host.copy_(newest, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._fetching = (host, event)

    def _prepare(self, slots: list[int]) -> tuple[Any, Any, Any, Any]:
        """Compute where the histories of these slots are. Ids before the first of all are read from the last slot."""
        histories, lengths = self._states.all_token_ids.gpu, self._states.total_len.gpu
        rows = torch.tensor(slots, device="cpu", pin_memory=self._on_cuda).to(histories.device, non_blocking=True)
        columns = rows * histories.shape[1] + torch.arange(-self._length, 0, device=histories.device)[:, None]
        found = (histories.view(-1), lengths, rows, columns)
        return found if self._on_cuda else tuple(tensor.numpy() for tensor in found)  # type: ignore[return-value]

    def expect(self, lengths: Sequence[int] | NDArray[Any]) -> None:
        """Expect these lengths of the histories in the order of the slots, and one id more at each `next_ids`."""
        self._expected, self._calls = np.add.outer(_ADDED, np.asarray(lengths, np.int32)), 0
        if not self._on_cuda and self._columns is not None:
            self._indices = self._columns[3][-1] + lengths

    def next_ids(self) -> list[int] | None:
        """Return the newest id of each slot; None if a history has another length than expected."""
        if self._calls == len(self._expected):
            self.expect(self._expected[-1])
        expected = self._expected[self._calls].tobytes()
        self._calls += 1
        if self._on_cuda:
            ends, newest = self._read()
            return newest[-1].tolist() if ends.tobytes() == expected else None
        histories, lengths, rows, _ = self._columns
        if lengths.take(rows).tobytes() != expected:
            return None
        ids: list[int] = histories[self._calls :].take(self._indices).tolist()
        return ids

    def since(self, slot: int, length: int) -> list[int]:
        """Return the slot's ids from index `length` on."""
        if not self._tails:
            ends, newest = self._read()
            self._tails = dict(zip(self._slots, zip(ends.tolist(), newest.T.tolist())))  # noqa: B905
        end, ids = self._tails[slot]
        if end - length > self._length:
            return self.history(slot, end)[length:]
        return ids[self._length - (end - length) :] if end > length else []

    def _read(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the length of each slot, and its newest ids: integers[slots], integers[length, slots]."""
        if self._fetching is None:
            histories, lengths, rows, columns = self._columns
            ends = lengths[rows]
            return ends, histories[columns + ends]
        host, event = self._fetching
        event.synchronize()
        newest = host.numpy()
        return newest[0], newest[1:]
