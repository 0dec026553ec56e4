"""logitport's contestants: its built-ins without a service, and its sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch

from benchmarks.kinds import FIRST_ORDINARY, Kind
from benchmarks.measure import Contestant
from benchmarks.workloads import Workload
from logitport import (
    Client,
    EditProcessor,
    EditRequest,
    Edits,
    History,
    ProcessorRef,
    Request,
    RowEdits,
)
from logitport.ops import apply_edits
from logitport.session import Handle, PendingStep, Session
from logitport.session.steps.step_frame import step_frame
from logitport_proto import common_pb2 as common
from logitport_proto import processing_pb2 as processing

Transport = Literal["grpc", "local"]


class InProcess(Contestant):
    """logitport's built-ins with their incremental state, in the engine's process, without a service.

    The edits are computed before the forward pass, so the exposed time is that of applying them. The blocking time
    shows the algorithm without the overhead of the service.
    """

    name = "built-ins in process"

    def __init__(self, workload: Workload) -> None:
        prompt = workload.history // 2
        histories = workload.histories()
        self._vocab_size = workload.vocab_size
        self._groups: list[tuple[EditProcessor, list[int], list[EditRequest]]] = []
        for kind, rows in workload.rows_by_kind().items():
            if kind is None:
                continue
            processor = kind.ours()
            assert isinstance(processor, EditProcessor)
            requests = []
            for row in rows:
                history = History(histories[row, :prompt], histories[row, prompt:])
                requests.append(EditRequest(kind.params, history, workload.vocab_size))
                processor.start(requests[-1])
            self._groups.append((processor, rows, requests))
        self.edits = Edits.pack([], workload.vocab_size)

    def begin(self, token_ids: Sequence[int]) -> None:
        row_edits: list[tuple[int, RowEdits]] = []
        for processor, rows, requests in self._groups:
            for row, request in zip(rows, requests, strict=True):
                request.history.append(token_ids[row])
                processor.advance(request, token_ids[row])
            collected = [RowEdits() for _ in requests]
            processor.edit_batch(requests, collected)
            row_edits += zip(rows, collected, strict=True)
        row_edits.sort(key=lambda row_and_edits: row_and_edits[0])
        self.edits = Edits.pack(row_edits, self._vocab_size)

    def finish(self, logits: torch.Tensor) -> None:
        apply_edits(self.edits, logits)


class Service(Contestant):
    """A session with a server."""

    def __init__(
        self,
        client: Client,
        workload: Workload,
        transport: Transport,
        *,
        in_buffer: bool = False,
        device: str = "cpu",
        tenants: int = 1,
        registered: bool = False,
        last: Kind | None = None,
        name: str = "",
    ) -> None:
        """With `in_buffer`, the engine's logits lie in the session's logits buffer; they are on `device`.

        Several tenants have equal numbers of adjacent rows. With `registered`, the classes are registered first, and
        requests name them. `last` is the last processor of each chain, besides the kind of its row; it is registered.
        """
        self.name = name or f"service, {transport}" + (", logits in its buffer" if in_buffer else "")
        self.session = client.session(
            vocab_size=workload.vocab_size,
            dtype=workload.dtype,
            device=device,
            transport=transport,
            max_requests=workload.rows,
        )
        kinds = {*workload.rows_by_kind(), last} - {None}
        processors = {kind: client.register(kind.ours) for kind in kinds if kind and (registered or kind is last)}
        self.handles = add_requests(self.session, workload, tenants, processors, last)
        # A request's first step has no new ids.
        self._pending: PendingStep = self.session.step({handle: [] for handle in self.handles})
        self._rows_applied = self._pending.apply(workload.logits().to(device)).rows_applied
        if in_buffer:
            self.logits = self.session.logits_buffer(workload.rows)

    def begin(self, token_ids: Sequence[int]) -> None:
        new_token_ids = {handle: (token_id,) for handle, token_id in zip(self.handles, token_ids, strict=True)}
        self._pending = self.session.step(new_token_ids)

    def finish(self, logits: torch.Tensor) -> None:
        self._pending.apply(logits)

    def step(self, token_ids: Sequence[int]) -> None:
        """Run a step until the edits are parsed and checked; nothing is applied."""
        self.begin(token_ids)
        self._pending.edits()

    def close(self) -> None:
        self.session.close()


class RoundTrip(Service):
    """A session's step until the edits are parsed and checked; they are not applied."""

    def finish(self, logits: torch.Tensor) -> None:  # noqa: ARG002 - not touched
        self._pending.edits()

    def frame_and_reply(self, workload: Workload) -> tuple[bytes, bytes]:
        """The frame and the reply of such a step."""
        new_token_ids = dict.fromkeys(self.handles, (FIRST_ORDINARY,))
        frame = step_frame(new_token_ids, {}, [(handle, 0) for handle in self.handles], workload.vocab_size)
        rows_applied = [common.RowsApplied(processor=name, rows=rows) for name, rows in self._rows_applied.items()]
        reply = processing.StepEdits(edits=self._pending.edits().to_proto(), applied=rows_applied)
        return (
            processing.SessionRequest(seq=1000, step=frame).SerializeToString(),
            processing.SessionResponse(seq=1000, edits=reply).SerializeToString(),
        )


def add_requests(
    session: Session,
    workload: Workload,
    tenants: int = 1,
    registered: Mapping[Kind, ProcessorRef] | None = None,
    last: Kind | None = None,
) -> list[Handle]:
    """Add every row's request, in order; the first tenant's come first. `last` is the last processor of each chain."""
    registered = registered or {}
    prompt = workload.history // 2
    handles = []
    for row, ids in enumerate(workload.histories().tolist()):
        kinds = (kind for kind in (workload.kind(row), last) if kind is not None)
        chain = [(registered.get(kind, kind.ours), kind.params) for kind in kinds]
        tenant = f"tenant {row * tenants // workload.rows}"
        handles.append(session.add(Request(ids[:prompt], ids[prompt:], chain, tenant=tenant)))
    return handles


def close_all(contestants: Iterable[Contestant]) -> None:
    """Close all contestants after a race."""
    for contestant in contestants:
        contestant.close()
