"""vLLM's processors of whole batches (V1): `update_state(batch_update)`, `apply(logits)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_session.dialects.results import check_result
from logitport_session.dialects.vllm import objects
from logitport_session.dialects.vllm.base import VllmDialect, VllmRequest
from logitport_session.dialects.vllm.vllm_batch import VllmBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from logitport_session.dialects.base import RequestContext
    from logitport_session.dialects.vllm.vllm_batch import Changes


class VllmV1Dialect(VllmDialect):
    """Calls one instance, and keeps its batch: the requests of the last call, in the order of their rows."""

    takes_rows = True

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        objects.check_constructor(processor)
        self._batch: VllmBatch[VllmRequest] = VllmBatch()
        self._context: RequestContext | None = None

    def rewind(self, state: VllmRequest) -> None:
        super().rewind(state)
        self._batch.renew(state)

    def _make(self, context: RequestContext) -> Any:
        self._context = context
        return super()._make(context)

    def _process(self, states: Sequence[VllmRequest], logits: torch.Tensor) -> torch.Tensor:
        if len(set(states)) == len(states):
            return self._step(states, range(len(states)), logits)
        for indices in _rounds(states):
            self._step_selected(states, indices, indices, logits)
        return logits

    def _step_selected(
        self, states: Sequence[VllmRequest], indices: Sequence[int], rows: Sequence[int], logits: torch.Tensor
    ) -> None:
        """Run `_step` for the requests with these indices, on a copy of these rows, and store the result there."""
        selected = logits[list(rows)]
        result = self._step(states, indices, selected)
        check_result(result, selected.shape, self.name)
        logits[list(rows)] = result.to(logits)

    def _step(self, states: Sequence[VllmRequest], indices: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Run one step for the batch of the distinct requests with these indices; `logits` are their rows."""
        try:
            self._update([states[index] for index in indices])
        except BaseException:
            self._reset()
            failed = {index: error for index in indices if (error := self._error_of(states[index])) is not None}
            if not failed:
                raise
            self.failed = {**self.failed, **failed}
            ok = [at for at, index in enumerate(indices) if index not in failed]
            if ok:
                self._step_selected(states, [indices[at] for at in ok], ok, logits)
            return logits
        try:
            applied: torch.Tensor = self.processor.apply(logits)
        except BaseException:
            self._reset()
            raise
        return applied

    def _update(self, requests: Sequence[VllmRequest]) -> None:
        if self.processor is None:
            assert self._context is not None  # noqa: S101 - there was an instance
            self.processor = self._make(self._context)
        changes = self._batch.follow(requests)
        self.processor.update_state(None if changes is None else _batch_update(changes, len(requests)))

    def _reset(self) -> None:
        """Discard the instance after an error, because its view of the batch may be wrong."""
        self._batch.clear()
        self.processor = None

    def _error_of(self, request: VllmRequest) -> BaseException | None:
        """The exception of a new instance with a batch of only this request; None if it raises none."""
        try:
            self._update([request])
        except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
            return error
        finally:
            self._reset()
        return None


def _batch_update(changes: Changes[VllmRequest], batch_size: int) -> Any:
    interface = objects.module("vllm.v1.sample.logits_processor.interface")
    one_way, swap = interface.MoveDirectionality.UNIDIRECTIONAL, interface.MoveDirectionality.SWAP
    return interface.BatchUpdate(
        batch_size=batch_size,
        removed=changes.removed,
        added=[
            (index, request.sampling_params, request.prompt_token_ids, request.output_token_ids)
            for index, request in changes.added
        ],
        moved=[(source, target, swap if swaps else one_way) for source, target, swaps in changes.moved],
    )


def _rounds(states: Sequence[VllmRequest]) -> Iterator[list[int]]:
    """Split the indices into rounds with distinct requests, because a batch holds each request once."""
    left = list(range(len(states)))
    while left:
        seen: set[VllmRequest] = set()
        indices = [index for index in left if not (states[index] in seen or seen.add(states[index]))]  # type: ignore[func-returns-value]
        yield indices
        left = [index for index in left if index not in indices]
