"""The hook for vLLM's second runner: requests have slots, rows move at every step, and histories are on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from logitport.integrations.common import environment
from logitport.integrations.vllm.engine import find_runner, ranks_here, session_options
from logitport.integrations.vllm.remote_batch import RemoteBatch, RemoteRequest, RemoteStep
from logitport.integrations.vllm.requested_chain import ending_id, has_chain, make_request

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
        self._token_tails = _TokenTails(states, options["max_draft_tokens"] + 1)
        self._by_slot: dict[int, _V2Request] = {}
        self._entering: dict[int, Any] = {}
        # Requests that lost their slots to others. The next forward pass shows whether they have ended.
        self._displaced: list[_V2Request] = []
        self._preempted: dict[str, _V2Request] = {}

    def add_request(self, slot: int, params: Any) -> bool:
        """Assign a slot to a request; its ids are on the device when `apply_staged_writes` is called."""
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
        runner_context = find_runner("req_states")
        try:
            self._remove_gone(runner_context)
            self._admit_new(runner_context)
            self._batch.send_changes()
            if self._ranks.is_leader:
                self._token_tails.fetch(list(self._by_slot))
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._batch.fail_all([*self._by_slot.values(), *self._preempted.values()], error)

    def apply(self, logits: torch.Tensor, context: Any) -> torch.Tensor:
        """Process float32[rows, vocab_size] in place; `LogitsContext` has each row's slot."""
        if not self._by_slot:
            return logits
        try:
            step = self._build_step(context, len(logits))
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._batch.fail_all(list(self._by_slot.values()), error)
            return logits
        if step.rows:
            if self._ranks.is_leader:
                self._fill_new_ids(step)
            self._batch.finish(step, logits)
        return logits

    def _remove_gone(self, runner_context: RunnerContext | None) -> None:
        """Release requests that have ended; keep preempted ones."""
        gone, self._displaced = self._displaced, []
        if runner_context is None:
            for request in gone:
                self._batch.release(request)
            return
        names = runner_context.runner.req_states.index_to_req_id
        for slot, request in list(self._by_slot.items()):
            if names.get(slot) != request.request_id:
                gone.append(self._by_slot.pop(slot))
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

    def _build_step(self, context: Any, rows: int) -> RemoteStep:
        """Build the step from all rows that will be sampled from; identical on all ranks."""
        step = RemoteStep()
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
        else:
            row_indices = self._row_indices(step, context, own)
        for slot, found in row_indices.items():
            request = self._by_slot[slot]
            step.new_ids[request] = ()
            step.rows += [(request, offset) for offset in range(len(found))]
            step.row_indices += found
        return step

    def _row_indices(self, step: RemoteStep, context: Any, own: set[int]) -> dict[int, list[int]]:
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

    def _fill_new_ids(self, step: RemoteStep) -> None:
        """Add the sampled ids that the service does not have yet."""
        for request in cast("list[_V2Request]", list(step.new_ids)):
            if request.handle is not None:
                try:
                    step.new_ids[request] = self._token_tails.since(request.slot, len(request.handle.history))
                except Exception as error:  # noqa: BLE001 - raising would end the engine
                    self._batch.fail(request, error)


class _TokenTails:
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
