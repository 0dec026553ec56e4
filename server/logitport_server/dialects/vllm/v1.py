"""vLLM's processors of whole batches (V1): `update_state(batch_update)`, `apply(logits)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_server.dialects.results import check_result
from logitport_server.dialects.vllm import objects
from logitport_server.dialects.vllm.base import VllmDialect, VllmRequest
from logitport_server.dialects.vllm.persistent_batch import PersistentBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from logitport_server.dialects.base import RequestContext
    from logitport_server.dialects.vllm.persistent_batch import Changes


class VllmV1Dialect(VllmDialect):
    """One instance, and the batch that it is told of: the requests of the last call, in the order of their rows."""

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        objects.check_constructor(processor)
        self._batch: PersistentBatch[VllmRequest] = PersistentBatch()
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
        for places in _turns(states):
            self._step_apart(states, places, places, logits)
        return logits

    def _step_apart(
        self, states: Sequence[VllmRequest], places: Sequence[int], rows: Sequence[int], logits: torch.Tensor
    ) -> None:
        """`_step` of the requests at these places, whose logits are these rows; the result goes there."""
        selected = logits[list(rows)]
        result = self._step(states, places, selected)
        check_result(result, selected.shape, self.name)
        logits[list(rows)] = result.to(logits)

    def _step(self, states: Sequence[VllmRequest], places: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """One step of the batch that consists of the requests at these places, each at one; `logits` are theirs."""
        try:
            self._update([states[place] for place in places])
        except BaseException:
            self._start_over()
            failed_row = {place: error for place in places if (error := self._error_of(states[place])) is not None}
            if not failed_row:
                raise
            self.failed = {**self.failed, **failed_row}
            ok = [at for at, place in enumerate(places) if place not in failed_row]
            if ok:
                self._step_apart(states, [places[at] for at in ok], ok, logits)
            return logits
        try:
            applied: torch.Tensor = self.processor.apply(logits)
        except BaseException:
            self._start_over()
            raise
        return applied

    def _update(self, requests: Sequence[VllmRequest]) -> None:
        if self.processor is None:
            assert self._context is not None  # noqa: S101 - there was an instance
            self.processor = self._make(self._context)
        changes = self._batch.follow(requests)
        self.processor.update_state(None if changes is None else _batch_update(changes, len(requests)))

    def _start_over(self) -> None:
        """After an error, what the instance knows of its batch is not to be trusted."""
        self._batch.clear()
        self.processor = None

    def _error_of(self, request: VllmRequest) -> BaseException | None:
        """What is raised if an instance is told of this request alone; None if nothing is."""
        try:
            self._update([request])
        except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
            return error
        finally:
            self._start_over()
        return None


def _batch_update(changes: Changes[VllmRequest], batch_size: int) -> Any:
    """The record of them that vLLM hands over."""
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


def _turns(states: Sequence[VllmRequest]) -> Iterator[list[int]]:
    """All places, in as many turns as a request has rows at most: a batch holds a request once."""
    left = list(range(len(states)))
    while left:
        met: set[VllmRequest] = set()
        turn = [place for place in left if not (states[place] in met or met.add(states[place]))]  # type: ignore[func-returns-value]
        yield turn
        left = [place for place in left if place not in turn]
