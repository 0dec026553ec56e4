"""The hook for vLLM's second runner: requests have slots, rows move at every step, and histories are on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from logitport.integrations.common import environment
from logitport.integrations.common.engine_step import EngineStep
from logitport.integrations.vllm.engine import find_runner, ranks_here, session_options
from logitport.integrations.vllm.remote_batch import RemoteBatch, RemoteRequest
from logitport.integrations.vllm.requested_chain import ending_id, has_chain, make_request
from logitport.integrations.vllm.token_tails import TokenTails

if TYPE_CHECKING:
    from logitport.integrations.common.chains import Chain
    from logitport.integrations.vllm.engine import RunnerContext


@dataclass(eq=False)
class _V2Request(RemoteRequest):
    """A request in the second runner.

    Attributes:
        slot: its index in the runner's state.
        prefill_length: ids read before any is sampled: the prompt, and the ids sampled before a preemption.
    """

    slot: int = 0
    prefill_length: int = 0


class V2Hook:
    """Drives a `RemoteBatch` from `add_request`, `apply_staged_writes` and `apply` of vLLM's V2 interface.

    Args:
        config: `VllmConfig`.
        states: `LogitsProcRequestState`.

    Raises:
        ValueError: the configuration is not supported, or the environment variables are invalid.
    """

    def __init__(self, config: Any, states: Any) -> None:
        options = session_options(config, states.device, "V2")
        self._default: Chain = environment.default_chain()
        environment.client().close()
        self._states = states
        self._ranks = ranks_here()
        self._eos_token_ids = options["eos_token_ids"]
        self._batch = RemoteBatch(options, self._ranks, config.instance_id)
        self._step = EngineStep()
        # All slots of the last step, if it had one row for each.
        self._mapping: bytes | None = None
        # vLLM's names of the requests in its slots, and how many there were at the last update. Each request that joins
        # them is passed to `add_request`, so that the same number of names are the same names until then.
        self._names: dict[int, str] = {}
        self._names_count = 0
        self._is_stale = False
        self._speculates = options["max_draft_tokens"] > 0
        self._token_tails = TokenTails(states, options["max_draft_tokens"] + 1)
        self._by_slot: dict[int, _V2Request] = {}
        self._slots: list[int] = []
        self._entering: dict[int, Any] = {}
        # Requests that lost their slots to others. The next forward pass shows whether they have ended.
        self._displaced: list[_V2Request] = []
        self._preempted: dict[str, _V2Request] = {}

    def add_request(self, slot: int, params: Any) -> bool:
        """Assign a slot to a request; its ids are on the device when `apply_staged_writes` is called."""
        self._is_stale = True
        self._entering.pop(slot, None)
        if (displaced := self._by_slot.pop(slot, None)) is not None:
            self._displaced.append(displaced)
        if not has_chain(params, self._default):
            return False
        self._entering[slot] = params
        return True

    def apply_staged_writes(self) -> None:
        """Before the forward pass: remove and admit requests, and queue a copy of the sampled ids."""
        if not (self._by_slot or self._entering or self._displaced or self._preempted):
            return
        try:
            if self._is_stale or self._preempted or len(self._names) != self._names_count:
                self._update_requests(find_runner("req_states"))
            if self._ranks.is_leader:
                self._token_tails.fetch(self._slots)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._batch.fail_all([*self._by_slot.values(), *self._preempted.values()], error)

    def apply(self, logits: torch.Tensor, context: Any) -> torch.Tensor:
        """Process float32[rows, vocab_size] in place; `LogitsContext` has each row's slot."""
        if not self._by_slot:
            return logits
        try:
            if not self._repeat_step(context, logits):
                self._step = self._build_step(context, len(logits))
                if self._ranks.is_leader:
                    self._fill_new_ids(self._step)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._batch.fail_all(list(self._by_slot.values()), error)
            return logits
        if self._step.rows:
            self._batch.finish(self._step, logits)
        return logits

    def _repeat_step(self, context: Any, logits: torch.Tensor) -> bool:
        """Set the new ids of the last step again, if only one id has joined each request. Returns whether it did."""
        slots = context.idx_mapping_np
        if slots.tobytes() != self._mapping or not self._batch.is_steady(self._step):
            return False
        if self._speculates and logits.shape[0] != len(slots):
            return False
        if not self._step.repeated:
            self._token_tails.expect([len(request.handle.history) for request in self._step.requests])
        newest = self._token_tails.next_ids()
        if newest is None:
            return False
        self._step.repeat(newest)
        return True

    def _update_requests(self, runner_context: RunnerContext | None) -> None:
        """Remove and admit requests."""
        self._remove_gone(runner_context)
        if self._entering:
            self._mapping = None
            self._admit_new(runner_context)
        self._slots, self._is_stale = list(self._by_slot), False
        self._batch.send_changes()

    def _remove_gone(self, runner_context: RunnerContext | None) -> None:
        """Release requests that have ended; keep preempted ones."""
        gone, self._displaced = self._displaced, []
        if gone:
            self._mapping = None  # the next step has other requests, maybe in the same slots
        if runner_context is None:
            for request in gone:
                self._batch.release(request)
            return
        names = runner_context.runner.req_states.index_to_req_id
        self._names, self._names_count = names, len(names)
        left = [slot for slot, request in self._by_slot.items() if names.get(slot) != request.request_id]
        gone += map(self._by_slot.pop, left)
        if left:
            self._mapping = None
        preempted = runner_context.scheduled.preempted_req_ids or ()
        for request in gone:
            if request.request_id in preempted:
                self._preempted[request.request_id] = request
            else:
                self._batch.release(request)
        for name in runner_context.scheduled.finished_req_ids:
            if name in self._preempted and name not in preempted:
                self._batch.release(self._preempted.pop(name))

    def _admit_new(self, runner_context: RunnerContext | None) -> None:
        entering, self._entering = self._entering, {}
        for slot, params in entering.items():
            name = "" if runner_context is None else runner_context.runner.req_states.index_to_req_id.get(slot)
            if name is not None:  # None during vLLM's warm-up, where the slot has no request
                self._by_slot[slot] = self._resume(slot, name) or self._admit(slot, name, params)

    def _resume(self, slot: int, name: str) -> _V2Request | None:
        """Return the preempted request with this name, if it is still the same request."""
        request = self._preempted.pop(name, None)
        if request is None:
            return None
        if request.prompt_length != int(self._states.prompt_len.np[slot]):
            self._batch.release(request)
            return None
        request.slot, request.prefill_length = slot, int(self._states.prefill_len.np[slot])
        return request

    def _admit(self, slot: int, name: str, params: Any) -> _V2Request:
        prompt_length, prefill_length = int(self._states.prompt_len.np[slot]), int(self._states.prefill_len.np[slot])
        request = _V2Request(
            request_id=name,
            prompt_length=prompt_length,
            ending_id=ending_id(params, self._eos_token_ids),
            slot=slot,
            prefill_length=prefill_length,
        )
        if self._ranks.is_leader:
            ids = self._token_tails.history(slot, prefill_length)
            self._batch.admit(
                request, lambda: make_request(params, self._default, ids[:prompt_length], ids[prompt_length:], name)
            )
        return request

    def _build_step(self, context: Any, rows: int) -> EngineStep:
        """Build the step from all rows that will be sampled from; identical on all ranks."""
        step, self._mapping = EngineStep(), None
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
            row_indices = {slot: [row] for row, slot in enumerate(slots) if slot in own}
            if len(own) == len(self._by_slot):
                self._mapping = context.idx_mapping_np.tobytes()
                self._by_slot = {slot: self._by_slot[slot] for slot in row_indices}  # in the order of the rows
                self._slots = list(self._by_slot)
        else:
            row_indices = self._row_indices(step, context, own)
        for slot, found in row_indices.items():
            step.add(self._by_slot[slot], (), *found)
        return step

    def _row_indices(self, step: EngineStep, context: Any, own: set[int]) -> dict[int, list[int]]:
        """Return the rows of each speculating slot, by draft offset, and add its draft tokens to the step."""
        columns = torch.stack([context.expanded_idx_mapping, context.expanded_local_pos, context.input_ids]).tolist()
        row_indices: dict[int, list[int]] = {}
        drafts: dict[int, list[int]] = {}
        for row, (slot, offset, token_id) in enumerate(zip(*columns)):  # noqa: B905
            if slot not in own or offset != len(row_indices.get(slot, ())):
                continue
            if offset and token_id < 0:  # a placeholder: vLLM rejects it and all that follow
                continue
            row_indices.setdefault(slot, []).append(row)
            if offset:
                drafts.setdefault(slot, []).append(token_id)
        step.drafts = {self._by_slot[slot]: token_ids for slot, token_ids in drafts.items()}
        return row_indices

    def _fill_new_ids(self, step: EngineStep) -> None:
        """Add the sampled ids that the service does not have yet."""
        for index, request in enumerate(step.requests):
            if request.handle is not None:
                try:
                    step.new_ids[index] = self._token_tails.since(request.slot, len(request.handle.history))
                except Exception as error:  # noqa: BLE001 - raising would end the engine
                    self._batch.fail(request, error)
