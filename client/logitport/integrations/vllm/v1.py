"""The hook for vLLM's first runner, which describes the batch by index, before each forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument
from logitport.integrations.common import environment
from logitport.integrations.common.engine_step import EngineStep, OutputLists
from logitport.integrations.vllm.engine import find_runner, ranks_here, samples_here, session_options
from logitport.integrations.vllm.remote_batch import RemoteBatch, RemoteRequest
from logitport.integrations.vllm.requested_chain import ending_id, has_chain, make_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport.integrations.common.chains import Chain
    from logitport.integrations.vllm.engine import RunnerContext

# Asynchronous scheduling's placeholder for a sampled id that has not reached the host.
_PLACEHOLDER_ID = -1


@dataclass(eq=False)
class _V1Request(RemoteRequest):
    """A request in the first runner.

    Attributes:
        output_ids: the sampled ids; vLLM appends to this list.
        state: vLLM's own state of the request, which identifies it; None if it cannot be found.
        prefills: whether a step may read a part of the prompt only. After the last part, a request that must read its
            prompt again has left the batch meanwhile.
    """

    output_ids: Sequence[int] = ()
    state: Any = None
    prefills: bool = True


class V1Hook:
    """Drives a `RemoteBatch` from `update_state` and `apply` of vLLM's V1 interface.

    Args:
        config: `VllmConfig`.
        device: of the logits.

    Raises:
        ValueError: the configuration is not supported, or the environment variables are invalid.
    """

    def __init__(self, config: Any, device: Any) -> None:
        options = session_options(config, device, "V1")
        self._default: Chain = environment.default_chain()
        environment.client().close()
        self._eos_token_ids = options["eos_token_ids"]
        self._samples_here = samples_here()
        self._batch = RemoteBatch(options, ranks_here(), config.instance_id)
        self._by_row: dict[int, _V1Request] = {}
        # Requests that are preempted or not scheduled, keyed by the identity of vLLM's state.
        self._parked: dict[int, _V1Request] = {}
        self._step = EngineStep()
        self._waits_for_ids = False
        # Of the last step; empty if a request may join the next one.
        self._outputs = OutputLists()

    def update_state(self, update: Any) -> None:
        """Apply a `BatchUpdate` or None, and begin the step if all sampled ids are known."""
        if not self._by_row and not self._parked and not self._adds_chain(update):
            return
        try:
            if update is None and self._repeat_step():
                self._begin()
            else:
                with self._batch.together():
                    self._build_step(update)
                    self._begin()
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._batch.fail_all([*self._by_row.values(), *self._parked.values()], error)
            self._step, self._waits_for_ids = EngineStep(), False
            for row, request in sorted(self._by_row.items()):
                self._step.add(request, (), row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Process float32[rows, vocab_size], in place."""
        step = self._step
        if not step.rows:
            return logits
        if self._waits_for_ids:
            self._end_wait(step)
        self._batch.finish(step, logits)
        return logits

    def _begin(self) -> None:
        if not self._waits_for_ids:
            self._batch.begin(self._step)

    def _adds_chain(self, update: Any) -> bool:
        return (
            update is not None
            and self._samples_here
            and any(has_chain(added[1], self._default) for added in update.added)
        )

    def _apply_update(self, update: Any, context: RunnerContext | None) -> None:
        """Map requests to their current rows. Parks those that left the batch for a while, and admits new ones."""
        if update is not None:
            for row in (*update.removed, *(added[0] for added in update.added)):
                self._park(self._by_row.pop(row, None))
            states = _states(context) if update.added else {}
            for row, params, prompt_ids, output_ids in update.added:
                if has_chain(params, self._default):
                    state = states.get(id(output_ids))
                    self._by_row[row] = self._resume(state, prompt_ids, output_ids) or self._admit(
                        state, params, prompt_ids, output_ids
                    )
            for source, target, direction in update.moved:
                self._move(source, target, swap=direction.name == "SWAP")
        for key, request in list(self._parked.items()):
            state = None if context is None else context.runner.requests.get(request.request_id)
            if state is None or state is not request.state:
                del self._parked[key]
                self._batch.release(request)

    def _move(self, source: int, target: int, *, swap: bool) -> None:
        moved, replaced = self._by_row.pop(source, None), self._by_row.pop(target, None)
        if moved is not None:
            self._by_row[target] = moved
        if replaced is not None and swap:
            self._by_row[source] = replaced
        else:
            self._park(replaced)

    def _park(self, request: _V1Request | None) -> None:
        if request is not None:
            self._parked[id(request.state or request)] = request

    def _resume(self, state: Any, prompt_ids: Sequence[int] | None, output_ids: Sequence[int]) -> _V1Request | None:
        """Return the parked request with this state, if it is still the same request."""
        request = None if state is None else self._parked.pop(id(state), None)
        if request is None:
            return None
        if prompt_ids is None or len(prompt_ids) != request.prompt_length:
            self._batch.release(request)
            return None
        request.output_ids, request.prefills = output_ids, True
        return request

    def _admit(
        self, state: Any, params: Any, prompt_ids: Sequence[int] | None, output_ids: Sequence[int]
    ) -> _V1Request:
        request = _V1Request(
            request_id="" if state is None else state.req_id,
            prompt_length=len(prompt_ids or ()),
            ending_id=ending_id(params, self._eos_token_ids),
            output_ids=output_ids,
            state=state,
        )
        if prompt_ids is None:
            self._batch.fail(request, InvalidArgument("the prompt is embeddings, but processors need its token ids"))
            return request
        output = [token_id for token_id in output_ids if token_id != _PLACEHOLDER_ID]
        self._batch.admit(request, lambda: make_request(params, self._default, prompt_ids, output, request.request_id))
        return request

    def _repeat_step(self) -> bool:
        """Set the new ids of the last step again, if only one id has joined each request. Returns whether it did."""
        outputs = self._outputs
        newest = outputs.next_ids() if not self._parked and self._batch.is_steady(self._step) else None
        if not newest:
            return False
        if outputs.steps == 1 and [request.known_outputs for request in self._step.requests] != outputs.lengths:
            return False  # some ids were placeholders when their request was admitted
        self._waits_for_ids = _PLACEHOLDER_ID in newest
        if not self._waits_for_ids:
            self._step.repeat(newest)
        return True

    def _end_wait(self, step: EngineStep) -> None:
        """Set the new ids of the step, which were placeholders when it was built."""
        self._waits_for_ids = False
        newest = self._outputs.newest() if self._outputs.steps else []
        if newest and _PLACEHOLDER_ID not in newest:
            step.repeat(newest)
        else:
            step.new_ids, step.repeated = list(map(self._new_ids, step.requests)), {}

    def _build_step(self, update: Any) -> None:
        """Build the step from all rows that will be sampled from."""
        context = find_runner("input_batch")
        self._step, self._waits_for_ids = EngineStep(), False
        self._apply_update(update, context)
        self._batch.send_changes()
        is_partial = False
        for row, request in sorted(self._by_row.items()):
            output_ids, handle = request.output_ids, request.handle
            known = 0 if handle is None else len(handle.history) - request.prompt_length
            if len(output_ids) < known:
                self._batch.rewind(request, request.prompt_length + len(output_ids))
            if request.prefills and _is_partial_prefill(request, context):
                is_partial = True
                continue
            request.prefills = False
            new_ids = output_ids[known:]
            if _PLACEHOLDER_ID in new_ids:
                self._waits_for_ids = True
                new_ids = ()
            elif handle is None:
                new_ids = ()  # it is admitted with them
            self._step.add(request, new_ids, row)
        self._outputs = OutputLists([] if is_partial else [request.output_ids for request in self._step.requests])

    def _new_ids(self, request: _V1Request) -> Sequence[int]:
        """Return the sampled ids that the service does not have yet. By now none may be a placeholder."""
        if request.handle is None:
            return ()
        new_ids = request.output_ids[request.known_outputs :]
        if _PLACEHOLDER_ID in new_ids:
            self._batch.fail(request, InvalidArgument("vLLM does not show its sampled ids; use a supported version"))
            return ()
        return new_ids


def _states(context: RunnerContext | None) -> dict[int, Any]:
    """Return vLLM's state of each request of the batch, keyed by the identity of its list of output ids."""
    if context is None:
        return {}
    batch, requests = context.runner.input_batch, context.runner.requests
    return {id(ids): requests[name] for name, ids in zip(batch.req_ids, batch.req_output_token_ids)}  # noqa: B905


def _is_partial_prefill(request: _V1Request, context: RunnerContext | None) -> bool:
    """Return whether this step reads a chunk of the prompt other than the last: vLLM then drops the sampled id."""
    if context is None or request.state is None:
        return False
    state = request.state
    scheduled: int = context.scheduled.num_scheduled_tokens.get(request.request_id, 0)
    return bool(state.num_computed_tokens + scheduled < state.num_tokens)
