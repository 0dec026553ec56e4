"""Contestants on a GPU: copies of the logits as floors, torch's own operator, and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benchmarks.contestants import Service
from benchmarks.measure import Contestant

if TYPE_CHECKING:
    from benchmarks.contestants import Transport
    from benchmarks.workloads import Workload
    from logitport import Client


class Copies(Contestant):
    """Copies the logits away and back: to pinned memory of the host, or on the device."""

    def __init__(self, workload: Workload, device: str, *, pinned: bool) -> None:
        self.name = "copy to the host and back" if pinned else "copy on the device and back"
        self._pinned = pinned
        where = "cpu" if pinned else device
        shape = workload.rows, workload.vocab_size
        self._target = torch.empty(
            shape, dtype=workload.dtype, device=where, pin_memory=pinned and torch.cuda.is_available()
        )

    def finish(self, logits: torch.Tensor) -> None:
        self._target.copy_(logits, non_blocking=True)
        if self._pinned and logits.is_cuda:
            torch.cuda.current_stream().synchronize()  # as a server must that reads them on the host
        logits.copy_(self._target, non_blocking=True)


class TorchDivide(Contestant):
    """Torch's operator in place: one kernel that reads and writes every logit."""

    name = "torch's operator"

    def __init__(self, workload: Workload, device: str, temperature: float) -> None:
        self._temperatures = torch.full((workload.rows, 1), temperature, dtype=workload.dtype, device=device)

    def finish(self, logits: torch.Tensor) -> None:
        logits.div_(self._temperatures)


class Named(Service):
    """A session with a name of its own."""

    def __init__(self, name: str, client: Client, workload: Workload, transport: Transport, **options: Any) -> None:
        super().__init__(client, workload, transport, name=name, **options)
