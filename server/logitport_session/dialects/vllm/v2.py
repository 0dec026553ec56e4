"""The dialect of vLLM's revised model runner (V2): one instance for all requests; each has a slot.

    add_request(req_idx, sampling_params) -> bool    a request now owns the slot
    apply_staged_writes()                            once a step
    apply(logits, ctx)                               all rows of the step, including those of draft tokens

After its history was cut back, or its instance was replaced, a request is added again with its current history,
as the model runner does with a request that was preempted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logitport import dialects, payload
from logitport.core.history import History
from logitport.errors import PayloadError
from logitport_session.dialects.results import check_result
from logitport_session.dialects.vllm import objects
from logitport_session.dialects.vllm.base import VllmDialect, VllmRequest
from logitport_session.dialects.vllm.request_slots import RequestSlots, arrange
from logitport_session.stubs.vllm.config import VllmConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logitport_session.dialects.base import RequestContext
    from logitport_session.dialects.vllm.request_slots import Arrangement, Seat

_INTERFACE = "vllm.v1.worker.gpu.sample.logits_processor.interface"

# Initial capacity: requests, and ids per request. Few sessions use their maximum of requests. An instance that needs
# more of either is replaced by one with more capacity.
_INITIAL_SLOTS = 256
_INITIAL_LENGTH = 1 << 15


@dataclass(eq=False, slots=True)
class _SlotRequest(VllmRequest):
    """A request with tokens that a processor reads from its slot; the two lists of ids are empty.

    Attributes:
        seat: the request's slot; None before it is added, also if it must be added again.
        declined: whether `add_request` returned False: the processor does not change the request's logits.
    """

    seat: Seat | None = None
    declined: bool = False


class _Instance:
    """An instance of a processor, and the slots of its requests. A method that calls the processor may raise anything.

    Attributes:
        processor: the instance.
        slots: slots of the requests.
    """

    def __init__(self, make: Callable[..., Any], config: Any, slots: RequestSlots, vocab_size: int) -> None:
        self._interface = objects.module(_INTERFACE)
        state = self._interface.LogitsProcRequestState(
            device=slots.device,
            max_num_reqs=slots.count,
            vocab_size=vocab_size,
            all_token_ids=slots.all_token_ids,
            prompt_len=slots.prompt_len,
            prefill_len=slots.prefill_len,
            total_len=slots.total_len,
        )
        self.processor = payload.instantiate(make, config, state)
        self.slots = slots

    def apply(self, logits: torch.Tensor, rows: Arrangement) -> torch.Tensor:
        """Process float32[rows, vocab_size], in place or not; the result is not checked."""
        histories = [request.history for request in rows.requests]
        slots = np.array([request.seat.slot for request in rows.requests], np.intp)
        lengths = np.array([history.length for history in histories], np.int32)
        counts = np.array([1 + len(drafts) for drafts in rows.drafts], np.int32)
        input_ids: list[int] = []
        for history, drafts in zip(histories, rows.drafts, strict=True):
            input_ids.append(history.at(history.length - 1) if history.length else 0)
            input_ids += drafts
        starts = np.cumsum(counts, dtype=np.int32) - counts
        local_pos = np.arange(len(input_ids), dtype=np.int32) - np.repeat(starts, counts)
        expanded = idx_mapping = self._on_device(slots.astype(np.int64))
        if len(input_ids) > len(slots):
            expanded = self._on_device(np.repeat(slots.astype(np.int64), counts))
        context = self._interface.LogitsContext(
            expanded_idx_mapping=expanded,
            idx_mapping=idx_mapping,
            idx_mapping_np=slots,
            expanded_local_pos=self._on_device(local_pos),
            input_ids=self._on_device(np.array(input_ids, np.int32)),
            pos=self._on_device(np.repeat(lengths.astype(np.int64) - 1, counts) + local_pos),
            seq_lens_upper_bound_np=lengths + counts - 1,
        )
        result: torch.Tensor = self.processor.apply(logits, context)
        return result

    def _on_device(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.slots.device)


class VllmV2Dialect(VllmDialect):
    """Calls a processor with logits and a context of slots; it returns logits."""

    takes_drafts = True
    takes_rows = True

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        author = dialects.author_of(processor)
        if isinstance(processor, author):
            raise PayloadError(
                f"an instance of {author.__qualname__} was shipped, but it is bound to the slots of one engine; ship "
                "the class"
            )
        objects.check_constructor(processor, ("vllm_config", "req_states"))
        self._instance: _Instance | None = None
        self._room = (0, _INITIAL_LENGTH)
        self._context: RequestContext | None = None

    def start(self, context: RequestContext, params: dict[str, Any]) -> _SlotRequest:
        if self._context is None:
            self._context = replace(context, history=History())  # not the request's: it would stay alive
            self._room = (min(context.max_requests, _INITIAL_SLOTS), _INITIAL_LENGTH)
        if self._instance is None:
            self._instance = self._make_instance(*self._room)
        made = objects.sampling_params(context.sampling_params, params, context.eos_token_ids)
        self._check(made)  # again, because validate_params may change this object and vLLM keeps such changes
        return _SlotRequest(made, [], [], context.history)

    def token_callback(self, state: VllmRequest) -> None:  # noqa: ARG002 - each call reads the new ids itself
        return None

    def rewind(self, state: VllmRequest) -> None:
        assert isinstance(state, _SlotRequest)  # noqa: S101 - `start` creates no other type
        if state.seat is not None and state.history.length < state.seat.written:
            state.seat = None

    def rebuild(self, state: VllmRequest) -> None:
        assert isinstance(state, _SlotRequest)  # noqa: S101 - `start` creates no other type
        state.seat = None

    def _process(self, states: Sequence[Any], logits: torch.Tensor) -> torch.Tensor:
        try:
            requests = dict.fromkeys(states)
            instance = self._with_room(requests)
            failed = self._seat(instance, requests)
            if failed:
                self.failed = {index: failed[state] for index, state in enumerate(states) if state in failed}
                requests = {request: None for request in requests if request not in failed}
            instance.slots.flush([request.seat for request in requests])
            if hasattr(instance.processor, "apply_staged_writes"):
                instance.processor.apply_staged_writes()
            if all(request.declined for request in requests):
                return logits
            rows = arrange(states, self.drafts, failed)
            in_order = rows.indices == list(range(len(states))) and logits.is_contiguous()
            selected = logits if in_order else logits[rows.indices]
            result = instance.apply(selected, rows)
            check_result(result, selected.shape, self.name)
        except BaseException:
            self._instance = None  # its state may be wrong after an error
            raise
        if in_order:
            return result
        kept = [at for at in range(len(rows.indices)) if at not in rows.missing]
        logits[[rows.indices[at] for at in kept]] = result[kept].to(logits)
        return logits

    def _with_room(self, requests: Iterable[_SlotRequest]) -> _Instance:
        """Return the instance, or a new one with room for these requests."""
        count, longest = self._room
        instance = self._instance
        new = sum(not _has_slot(request, instance) for request in requests)
        taken = 0 if instance is None else count - instance.slots.free
        needed = max(request.history.length for request in requests)
        while count < taken + new:
            count *= 2
        while longest < needed:
            longest *= 2
        if instance is None or (count, longest) != self._room:
            self._room = count, longest
            self._instance = instance = self._make_instance(count, longest)
        return instance

    def _seat(self, instance: _Instance, requests: Iterable[_SlotRequest]) -> dict[_SlotRequest, BaseException]:
        """Give a slot to each request that has none. Returns the processor's exceptions, by request."""
        failed: dict[_SlotRequest, BaseException] = {}
        for request in requests:
            if _has_slot(request, instance):
                continue
            seat = instance.slots.seat(request.history)
            try:
                changes = instance.processor.add_request(seat.slot, request.sampling_params)
                request.declined = changes is not None and not changes
                request.seat = seat
            except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
                failed[request] = error
                seat.leave()
        return failed

    def _make_instance(self, count: int, longest: int) -> _Instance:
        """Create an instance of the processor. Raises PayloadError."""
        context = self._context
        assert context is not None  # noqa: S101 - `start` has set it
        slots = RequestSlots(count, longest, torch.device(context.device))
        config = VllmConfig(context.vocab_size, count, context.tokenizer_id, context.eos_token_ids)
        config.model_config.max_model_len = longest
        instance = _Instance(self._source, config, slots, context.vocab_size)
        self.processor = instance.processor
        return instance


def _has_slot(request: _SlotRequest, instance: _Instance | None) -> bool:
    return instance is not None and request.seat is not None and request.seat.slots is instance.slots
