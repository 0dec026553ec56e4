"""Copies the newest token ids of each slot from the device, asynchronously."""

from __future__ import annotations

from typing import Any

import torch


class TokenTails:
    """Reads vLLM's history of each slot: `all_token_ids`, valid up to `total_len`.

    A copy that is queued before the forward pass is on the host once the previous step is done. Waiting for it does not
    wait for the forward pass.

    Args:
        states: `LogitsProcRequestState`.
        length: the most ids that a step adds to a slot.
    """

    def __init__(self, states: Any, length: int) -> None:
        self._states = states
        self._length = length
        self._on_cuda = states.device.type == "cuda"
        self._fetching: tuple[list[int], torch.Tensor, Any] | None = None
        self._tails: dict[int, tuple[int, list[int]]] = {}

    def history(self, slot: int, length: int) -> list[int]:
        """Return the slot's first ids, read synchronously."""
        ids: list[int] = self._states.all_token_ids.gpu[slot, :length].tolist()
        return ids

    def fetch(self, slots: list[int]) -> None:
        """Queue a copy of the newest ids of these slots, for `since`."""
        self._tails = {}
        self._fetching = None
        if not slots:
            return
        history, lengths = self._states.all_token_ids.gpu, self._states.total_len.gpu
        device = history.device
        rows = torch.tensor(slots, device="cpu", pin_memory=self._on_cuda).to(device, non_blocking=True)
        ends = lengths[rows]
        columns = ends[:, None].long() - self._length + torch.arange(self._length, device=device)
        newest = torch.cat([ends[:, None], history[rows[:, None], columns.clamp(min=0)]], dim=1)
        if not self._on_cuda:
            self._fetching = (slots, newest.cpu(), None)
            return
        host = torch.empty(newest.shape, dtype=newest.dtype, pin_memory=True)
        host.copy_(newest, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._fetching = (slots, host, event)

    def since(self, slot: int, length: int) -> list[int]:
        """Return the slot's ids from index `length` on."""
        if self._fetching is not None:
            slots, newest, event = self._fetching
            if event is not None:
                event.synchronize()
            self._fetching = None
            self._tails = {slot: (row[0], row[1:]) for slot, row in zip(slots, newest.tolist())}  # noqa: B905
        end, ids = self._tails[slot]
        if end - length > self._length:
            return self.history(slot, end)[length:]
        return ids[self._length - (end - length) :] if end > length else []
