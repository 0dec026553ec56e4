"""vLLM's second runner: requests have slots, rows change places at every step, and histories are on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from logitport.integrations.common import environment
from logitport.integrations.vllm.engine import Engine
from logitport.integrations.vllm.ranks import ranks_here
from logitport.integrations.vllm.remote import RemoteBatch, RemoteRequest, Step
from logitport.integrations.vllm.request_spec import asked_of, asks, ending_id
from logitport.integrations.vllm.runner_context import calling
from logitport.integrations.vllm.token_tails import TokenTails

if TYPE_CHECKING:
    from logitport.integrations.common.history_batch import Chain
    from logitport.integrations.vllm.runner_context import RunnerContext


@dataclass(eq=False)
class _Slotted(RemoteRequest):
    """A request as V2 shows it.

    Attributes:
        slot: where it is.
        prefill_length: ids that are read before anything is sampled: the prompt, and what had been sampled when it was
            preempted.
    """

    slot: int = 0
    prefill_length: int = 0


class V2Hook:
    """Drives a `RemoteBatch` by `add_request`, `apply_staged_writes` and `apply` of vLLM's V2 interface.

    Args:
        config: `VllmConfig`.
        states: `LogitsProcRequestState`.

    Raises:
        ValueError: vLLM runs in a way that is not supported, or the environment names no service.
    """

    def __init__(self, config: Any, states: Any) -> None:
        self._engine = Engine.of(config, states.device, "V2")
        self._default: Chain = environment.default_chain()
        environment.client().close()
        self._states = states
        self._ranks = ranks_here()
        self._batch = RemoteBatch(self._engine, self._ranks)
        self._token_tails = TokenTails(states, self._engine.max_draft_tokens + 1)
        self._by_slot: dict[int, _Slotted] = {}
        self._entering: dict[int, Any] = {}
        # Their slots were taken by others; whether they have ended is known before the next forward pass.
        self._displaced: list[_Slotted] = []
        self._preempted: dict[str, _Slotted] = {}

    def add_request(self, slot: int, params: Any) -> bool:
        """A request takes a slot; its ids are on the device by the time of `apply_staged_writes`."""
        self._entering.pop(slot, None)
        if (displaced := self._by_slot.pop(slot, None)) is not None:
            self._displaced.append(displaced)
        if not asks(params, self._default):
            return False
        self._entering[slot] = params
        return True

    def apply_staged_writes(self) -> None:
        """Before the forward pass: follow who came and went, and have the device send what was sampled."""
        if not (self._by_slot or self._entering or self._displaced or self._preempted):
            return
        caller = calling("req_states")
        try:
            self._leave(caller)
            self._enter(caller)
            if self._ranks.leads:
                self._token_tails.fetch(list(self._by_slot))
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._batch.give_up([*self._by_slot.values(), *self._preempted.values()], error)

    def apply(self, logits: torch.Tensor, context: Any) -> torch.Tensor:
        """Process float32[rows, vocab_size] in place; `LogitsContext` tells whose rows they are."""
        if not self._by_slot:
            return logits
        step = self._take_part(context, len(logits))
        if step.rows:
            if self._ranks.leads:
                self._tell(step)
            self._batch.finish(step, logits)
        return logits

    def _leave(self, caller: RunnerContext | None) -> None:
        """Who has ended is released, who was preempted kept."""
        gone, self._displaced = self._displaced, []
        if caller is None:
            for request in gone:
                self._batch.release(request)
            return
        names = caller.runner.req_states.index_to_req_id
        for slot, request in list(self._by_slot.items()):
            if names.get(slot) != request.request_id:
                gone.append(self._by_slot.pop(slot))
        preempted = caller.scheduled.preempted_req_ids or ()
        for request in gone:
            if request.request_id in preempted:
                self._preempted[request.request_id] = request
            else:
                self._batch.release(request)
        for name in caller.scheduled.finished_req_ids:
            if name in self._preempted and name not in preempted:
                self._batch.release(self._preempted.pop(name))

    def _enter(self, caller: RunnerContext | None) -> None:
        entering, self._entering = self._entering, {}
        for slot, params in entering.items():
            name = "" if caller is None else caller.runner.req_states.index_to_req_id.get(slot)
            if name is not None:  # else vLLM warms up, and there is no request
                self._by_slot[slot] = self._resumed(slot, name) or self._admitted(slot, name, params)

    def _resumed(self, slot: int, name: str) -> _Slotted | None:
        """The preempted request that this one is, if it is the same still."""
        request = self._preempted.pop(name, None)
        if request is None:
            return None
        if request.prompt_length != int(self._states.prompt_len.np[slot]):
            self._batch.release(request)
            return None
        request.slot, request.prefill_length = slot, int(self._states.prefill_len.np[slot])
        return request

    def _admitted(self, slot: int, name: str, params: Any) -> _Slotted:
        prompt_length, prefill_length = int(self._states.prompt_len.np[slot]), int(self._states.prefill_len.np[slot])
        request = _Slotted(
            request_id=name,
            prompt_length=prompt_length,
            ending_id=ending_id(params, self._engine.eos_token_ids),
            slot=slot,
            prefill_length=prefill_length,
        )
        if self._ranks.leads:
            ids = self._token_tails.history(slot, prefill_length)
            self._batch.admit(
                request, lambda: asked_of(params, self._default, ids[:prompt_length], ids[prompt_length:], name)
            )
        return request

    def _take_part(self, context: Any, rows: int) -> Step:
        """The step, with all rows that will be sampled from; on all ranks the same."""
        step = Step()
        slots = context.idx_mapping_np.tolist()
        lengths = context.seq_lens_upper_bound_np.tolist()
        own = {
            slot
            for slot, length in zip(slots, lengths)  # noqa: B905
            if (request := self._by_slot.get(slot)) is not None and length >= request.prefill_length
        }
        if not own:
            return step
        if rows == len(slots):
            places = {slot: [row] for row, slot in enumerate(slots) if slot in own}
        else:
            places = self._places(step, context, own)
        for slot, found in places.items():
            request = self._by_slot[slot]
            step.new_ids[request] = ()
            step.rows += [(request, offset) for offset in range(len(found))]
            step.places += found
        return step

    def _places(self, step: Step, context: Any, own: set[int]) -> dict[int, list[int]]:
        """The rows of each slot that speculates, by draft offset; its draft tokens join the step."""
        told = torch.stack([context.expanded_idx_mapping, context.expanded_local_pos, context.input_ids]).tolist()
        places: dict[int, list[int]] = {}
        drafts: dict[int, list[int]] = {}
        for row, (slot, offset, token_id) in enumerate(zip(*told)):  # noqa: B905
            if slot not in own or offset != len(places.get(slot, ())):
                continue
            if offset and token_id < 0:  # a placeholder, which vLLM is going to reject, and what follows with it
                continue
            places.setdefault(slot, []).append(row)
            if offset:
                drafts.setdefault(slot, []).append(token_id)
        step.drafts = {self._by_slot[slot]: token_ids for slot, token_ids in drafts.items()}
        return places

    def _tell(self, step: Step) -> None:
        """Put into the step what the service has not been told of what was sampled."""
        for request in cast("list[_Slotted]", list(step.new_ids)):
            if request.handle is not None:
                try:
                    step.new_ids[request] = self._token_tails.since(request.slot, len(request.handle.history))
                except Exception as error:  # noqa: BLE001 - raising would end the engine
                    self._batch.fail(request, error)
