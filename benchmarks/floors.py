"""Lower bounds of any service: transferring the bytes over a bare socket, and the work on the logits."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.echo import SocketEchoStream
from benchmarks.measure import Contestant
from benchmarks.peers import Echo
from benchmarks.workloads import Workload
from logitport.core.tensors import even_span, put_rows, rows_with_nan, take_rows


class SocketEcho(Echo):
    """A bare Unix socket that carries as many bytes as the steps of a session do."""

    name = "Unix socket echo of the same bytes"
    connect = SocketEchoStream


class InPlace(Contestant):
    """The server's work on the logits, in the engine's process: gather rows that are not adjacent, call the processor,
    search its rows for NaN, and scatter them.

    For a workload with one kind of processor. With `copied`, the logits are first copied to other memory, and back.
    """

    name = "the same work in process"

    def __init__(self, workload: Workload, *, copied: bool = False) -> None:
        (kind, self._rows), *_ = ((kind, rows) for kind, rows in workload.rows_by_kind().items() if kind is not None)
        self._processor: Any = kind.ours()
        self._params = [dict(kind.params) for _ in self._rows]
        self._scratch = torch.empty(len(self._rows), workload.vocab_size, dtype=workload.dtype)
        self._apart = len(self._rows) < workload.rows or copied
        if copied:
            self.name += ", copied there and back"

    def finish(self, logits: torch.Tensor) -> None:
        selected = take_rows(logits, self._rows, self._scratch) if self._apart else logits
        self._processor(selected, self._params)
        if self._apart:
            put_rows(logits, self._rows, selected)
        rows_with_nan(logits[even_span(self._rows) or slice(None)])


class Copies(Contestant):
    """Only copies every row to its tenant's memory and back."""

    name = "the copies alone"

    def __init__(self, workload: Workload, tenants: int) -> None:
        each = workload.rows // tenants
        self._spans = [slice(first, first + each) for first in range(0, workload.rows, each)]
        self._memory = [torch.empty(each, workload.vocab_size, dtype=workload.dtype) for _ in self._spans]

    def finish(self, logits: torch.Tensor) -> None:
        for span, memory in zip(self._spans, self._memory, strict=True):
            memory.copy_(logits[span])
            logits[span].copy_(memory)
