"""vLLM's first runner: processors are told by batch position, and before each forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from logitport.errors import InvalidArgument
from logitport.integrations.common import environment
from logitport.integrations.vllm.engine import Engine
from logitport.integrations.vllm.ranks import ranks_here, samples_here
from logitport.integrations.vllm.remote import RemoteBatch, RemoteRequest, Step
from logitport.integrations.vllm.request_spec import asked_of, asks, ending_id
from logitport.integrations.vllm.runner_context import calling

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport.integrations.common.history_batch import Chain
    from logitport.integrations.vllm.runner_context import RunnerContext

# What asynchronous scheduling puts for an id that was sampled and has not reached the host.
_NOT_YET = -1


@dataclass(eq=False)
class _Sampled(RemoteRequest):
    """A request as V1 shows it.

    Attributes:
        output_ids: what was sampled; vLLM appends to it.
        state: vLLM's own state of the request, which tells it from others; None if it cannot be seen.
    """

    output_ids: Sequence[int] = ()
    state: Any = None


class V1Hook:
    """Drives a `RemoteBatch` by `update_state` and `apply` of vLLM's V1 interface.

    Args:
        config: `VllmConfig`.
        device: of the logits.

    Raises:
        ValueError: vLLM runs in a way that is not supported, or the environment names no service.
    """

    def __init__(self, config: Any, device: Any) -> None:
        self._engine = Engine.of(config, device, "V1")
        self._default: Chain = environment.default_chain()
        environment.client().close()
        self._ranks = ranks_here()
        self._samples_here = samples_here()
        self._batch = RemoteBatch(self._engine, self._ranks)
        self._by_row: dict[int, _Sampled] = {}
        # Preempted, or not scheduled for now; by the identity of vLLM's state of each.
        self._parked: dict[int, _Sampled] = {}
        self._step = Step()
        self._waits_for_ids = False

    def update_state(self, update: Any) -> None:
        """Follow what became of the batch, a `BatchUpdate` or None; begin the step, if what was sampled is known."""
        if not self._by_row and not self._parked and not self._concerns_us(update):
            return
        caller = calling("input_batch")
        self._step = Step()
        try:
            self._follow(update, caller)
            self._take_part(caller)
            if not self._waits_for_ids:
                self._batch.begin(self._step)
        except Exception as error:  # noqa: BLE001 - raising would end the engine
            self._batch.give_up([*self._by_row.values(), *self._parked.values()], error)
            self._step = Step()
            for row, request in sorted(self._by_row.items()):
                self._step.add(request, (), row)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Process float32[rows, vocab_size], in place."""
        step = self._step
        if not step.rows:
            return logits
        self._step = Step()
        if self._waits_for_ids:
            step.new_ids = {request: self._new_ids(request) for request in cast("list[_Sampled]", list(step.new_ids))}
        self._batch.finish(step, logits)
        return logits

    def _concerns_us(self, update: Any) -> bool:
        return (
            update is not None and self._samples_here and any(asks(added[1], self._default) for added in update.added)
        )

    def _follow(self, update: Any, caller: RunnerContext | None) -> None:
        """Bring requests to the rows that they have now; who left for a while is parked, who is new is admitted."""
        if update is not None:
            for row in (*update.removed, *(added[0] for added in update.added)):
                self._park(self._by_row.pop(row, None))
            states = _states(caller) if update.added else {}
            for row, params, prompt_ids, output_ids in update.added:
                if asks(params, self._default):
                    state = states.get(id(output_ids))
                    self._by_row[row] = self._resumed(state, prompt_ids, output_ids) or self._admitted(
                        state, params, prompt_ids, output_ids
                    )
            for source, target, direction in update.moved:
                self._move(source, target, swap=direction.name == "SWAP")
        for key, request in list(self._parked.items()):
            state = None if caller is None else caller.runner.requests.get(request.request_id)
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

    def _park(self, request: _Sampled | None) -> None:
        if request is not None:
            self._parked[id(request.state or request)] = request

    def _resumed(self, state: Any, prompt_ids: Sequence[int] | None, output_ids: Sequence[int]) -> _Sampled | None:
        """The request that this one is, if it was parked and is the same still."""
        request = None if state is None else self._parked.pop(id(state), None)
        if request is None:
            return None
        if prompt_ids is None or len(prompt_ids) != request.prompt_length:
            self._batch.release(request)
            return None
        request.output_ids = output_ids
        return request

    def _admitted(
        self, state: Any, params: Any, prompt_ids: Sequence[int] | None, output_ids: Sequence[int]
    ) -> _Sampled:
        request = _Sampled(
            request_id="" if state is None else state.req_id,
            prompt_length=len(prompt_ids or ()),
            ending_id=ending_id(params, self._engine.eos_token_ids),
            output_ids=output_ids,
            state=state,
        )
        if prompt_ids is None:
            self._batch.fail(request, InvalidArgument("the prompt came as embeddings: processors need its token ids"))
            return request
        known = [token_id for token_id in output_ids if token_id != _NOT_YET]
        self._batch.admit(request, lambda: asked_of(params, self._default, prompt_ids, known, request.request_id))
        return request

    def _take_part(self, caller: RunnerContext | None) -> None:
        """Make the step of all rows that will be sampled from."""
        self._waits_for_ids = False
        for row, request in sorted(self._by_row.items()):
            if len(request.output_ids) < request.told:
                self._batch.rewind(request, len(request.output_ids))
            if not _reads_its_prompt(request, caller):
                if _NOT_YET in request.output_ids[request.told :]:
                    self._waits_for_ids = True
                    new_ids: Sequence[int] = ()
                else:
                    new_ids = self._new_ids(request)
                self._step.add(request, new_ids, row)

    def _new_ids(self, request: _Sampled) -> Sequence[int]:
        """What the service has not been told of what was sampled; by now all of it must be known."""
        if request.handle is None:
            return ()
        new_ids = request.output_ids[request.told :]
        if _NOT_YET in new_ids:
            self._batch.fail(request, InvalidArgument("vLLM does not show what it sampled; is the version supported?"))
            return ()
        return new_ids


def _states(caller: RunnerContext | None) -> dict[int, Any]:
    """State of each request of the batch, as vLLM keeps it, by the identity of the list of its output ids."""
    if caller is None:
        return {}
    batch, requests = caller.runner.input_batch, caller.runner.requests
    return {id(ids): requests[name] for name, ids in zip(batch.req_ids, batch.req_output_token_ids)}  # noqa: B905


def _reads_its_prompt(request: _Sampled, caller: RunnerContext | None) -> bool:
    """Whether this step reads a chunk of the prompt that is not the last one: what is sampled then is thrown away."""
    if caller is None or request.state is None:
        return False
    state = request.state
    scheduled: int = caller.scheduled.num_scheduled_tokens.get(request.request_id, 0)
    return bool(state.num_computed_tokens + scheduled < state.num_tokens)
