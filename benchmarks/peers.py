"""The peers: the real processors of SGLang, and lower bounds of the machine."""

from __future__ import annotations

import importlib
import sys
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.contestants import RoundTrip
from benchmarks.echo import EchoStream, SocketEchoStream
from benchmarks.measure import Contestant
from benchmarks.peer_files import folder_of
from benchmarks.workloads import Workload
from logitport.core.tensors import even_span, put_rows, rows_with_nan, take_rows

_MODULE = "sglang.srt.sampling.custom_logit_processor"


@cache
def sglang() -> ModuleType:
    """Import SGLang's module from its unpacked wheel; its packages are replaced by empty ones. Raises Missing."""
    folder = folder_of("LOGITPORT_SGLANG")
    for name in ("sglang", "sglang.srt", "sglang.srt.sampling"):
        package = ModuleType(name)
        package.__path__ = [str(Path(folder, *name.split(".")))]
        sys.modules[name] = package
    return importlib.import_module(_MODULE)


class _Req:
    """The part of SGLang's `Req` that processors read; its ids are arrays."""

    def __init__(self, rid: str, origin_input_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        self.rid = rid
        self.origin_input_ids = array("q", origin_input_ids)
        self.output_ids = array("q", output_ids)


class SGLang(Contestant):
    """SGLang 0.5.23's processors in the engine's process, called as its sampler calls them."""

    name = "SGLang"

    def __init__(self, workload: Workload) -> None:
        prompt = workload.history // 2
        histories = workload.histories().tolist()
        self._reqs = [_Req(str(row), ids[:prompt], ids[prompt:]) for row, ids in enumerate(histories)]
        # As in SGLang: the dict lives as long as the request, and has a weak reference to it.
        self._params = [
            {**kind.params, "__req__": weakref.proxy(req)} if (kind := workload.kind(row)) else None
            for row, req in enumerate(self._reqs)
        ]
        self._entries = [
            (kind.theirs(sglang())(), rows, torch.tensor(rows))
            for kind, rows in workload.rows_by_kind().items()
            if kind is not None and rows
        ]

    def begin(self, token_ids: Sequence[int]) -> None:
        for req, token_id in zip(self._reqs, token_ids, strict=True):
            req.output_ids.append(token_id)

    def finish(self, logits: torch.Tensor) -> None:
        """Gather, process, scatter, like `apply_custom_logit_processor` in sglang/srt/layers/sampler.py."""
        for processor, rows, indices in self._entries:
            selected = logits.index_select(0, indices)
            result = processor(selected, [self._params[row] for row in rows])
            logits.index_copy_(0, indices, result.to(logits.dtype))


class Echo(Contestant):
    """A bare gRPC stream that carries as many bytes as the steps of a session do."""

    name = "gRPC echo of the same bytes"
    connect: Callable[[str, bytes], Any] = EchoStream  # to a stream that sends, receives and closes

    def __init__(self, target: str, workload: Workload, session: RoundTrip) -> None:
        self._frame, reply = session.frame_and_reply(workload)
        self._stream = self.connect(target, reply)

    def begin(self, token_ids: Sequence[int]) -> None:  # noqa: ARG002 - the same frame at each step
        self._stream.send(self._frame)

    def finish(self, logits: torch.Tensor) -> None:  # noqa: ARG002 - there are no edits
        self._stream.receive()

    def close(self) -> None:
        self._stream.close()


class Copy(Contestant):
    """memcpy of the logits with all of torch's threads: the time of touching them once."""

    name = "memcpy of the logits"

    def __init__(self, workload: Workload) -> None:
        self._target = workload.logits()

    def finish(self, logits: torch.Tensor) -> None:
        self._target.copy_(logits)


class Nothing(Contestant):
    """An engine without processors, the reference of the others' steps."""

    name = "no processors"

    def finish(self, logits: Any) -> None:
        pass


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
