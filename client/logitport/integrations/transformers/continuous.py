"""logitport as a logits processor of transformers' continuous batching."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
import transformers
from transformers import ContinuousBatchingManager
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from logitport.errors import InvalidArgument
from logitport.integrations.common import environment, tenants
from logitport.integrations.common.chains import KEY, chain_of, require_chain
from logitport.integrations.common.circuit_breaker import SessionHolder
from logitport.integrations.common.engine_batch import EngineBatch
from logitport.integrations.common.engine_step import EngineStep, TrackedRequest
from logitport.integrations.common.ranks import Ranks
from logitport.shipping.request import Request
from logitport.system.bounded import BoundedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transformers import PreTrainedModel
    from transformers.generation.continuous_batching.requests import (
        FutureRequestState,
        GenerationOutput,
        RequestState,
    )

    from logitport.client.client import Client
    from logitport.errors import LogitportError
    from logitport.integrations.common.chains import Chain
    from logitport.session import Handle, StepResult


_MAX_HANDLES = 1024


class RemoteLogitsProcessor:
    """Processes the logits of `ContinuousBatchingManager` and of `model.generate_batch` in the service.

    transformers accepts no custom processors there. This class inserts itself after transformers' own processors and
    before temperature and other warpers:

        with remote.attached(model):
            outputs = model.generate_batch(prompts, generation_config)

    A request may name its own processors: `manager.add_request(ids, logitport=[["thinking_budget", {...}]])`.
    The service gets sampled ids before the forward pass and computes edits during it. Requests that are offloaded and
    resumed keep the state of their processors. If a processor fails, only its request ends, with the error in
    `GenerationOutput.error`.

    Args:
        processors: (processor, parameters) pairs for requests that name none.
        tenant: the program's customer, for requests that name none: `manager.add_request(ids, logitport_tenant="a")`.
        tokenizer_id: the model's tokenizer, for grammars and built-ins that read text: the path of its files, or a
            name of the Hugging Face hub; for a server a name that it knows.
        client: the connection; not closed by this object. By default one to the servers at LOGITPORT_TARGET, or without
            that variable one with sessions in this process (`Client.embedded`).

    Attributes:
        steps: forward passes with at least one request that has processors.
        rows_applied: rows per processor, as in `StepResult`, over all steps.
        seconds: time spent in this object, opening sessions included.
        handles: the last 1,024 requests that had processors, by name: `handles[request_id].report` is the `Report` of
            one, also after its end; see `logitport.report`.

    Raises:
        InvalidArgument: `processors` is no list of pairs.
    """

    def __init__(
        self, processors: Chain = (), *, client: Client | None = None, tokenizer_id: str = "", tenant: str = ""
    ) -> None:
        self.client = environment.client_of(self, client)
        self.default_chain = require_chain(processors)
        self.tenant = tenant
        self.tokenizer_id = tokenizer_id
        self.steps = 0
        self.rows_applied: Counter[str] = Counter()
        self.seconds = 0.0
        self.handles: BoundedTable[str, Handle] = BoundedTable(_MAX_HANDLES)

    @contextmanager
    def attached(self, model: PreTrainedModel) -> Iterator[None]:
        """Attach to every manager that the model creates in this context, `generate_batch` included."""
        name = "init_continuous_batching"
        before, make_manager = vars(model).get(name), getattr(model, name)

        def init_continuous_batching(*args: Any, **options: Any) -> ContinuousBatchingManager:
            return self.attach(make_manager(*args, **options))

        setattr(model, name, init_continuous_batching)
        try:
            yield
        finally:
            delattr(model, name)
            if before is not None:
                setattr(model, name, before)

    def attach(self, manager: ContinuousBatchingManager) -> ContinuousBatchingManager:
        """Attach to a manager that was neither started nor warmed up, and return it.

        Raises:
            InvalidArgument: the manager was started or warmed up; or its options keep Python out of a step, or hide the
                history, and the message names the option to set.
        """
        processors = manager.logit_processor
        attached = [one.owner for one in processors.logits_processor if isinstance(one, _Hook)]
        if attached == [self]:
            return manager
        _check_supported(manager, is_attached=bool(attached))
        hook = _Hook(self, manager)
        warpers = [type(one).__name__.endswith("LogitsWarper") for one in processors.logits_processor]
        processors.logits_processor.insert(warpers.index(True) if any(warpers) else len(warpers), hook)
        processors.tensors_required += 1
        processors.supported_keys.update(hook.supported_kwargs)
        processors.do_processing = True
        return manager


class _Hook(ContinuousBatchingLogitsProcessor):
    """Runs in one manager: `prepare_tensor_args` before the forward pass, `__call__` after it."""

    supported_kwargs = {KEY: list, tenants.KEY: str}  # noqa: RUF012 - named and typed by transformers
    ignored_kwargs = ()

    def __init__(self, owner: RemoteLogitsProcessor, manager: ContinuousBatchingManager) -> None:
        self.owner = owner
        self._manager = weakref.ref(manager)
        holder = SessionHolder(lambda: owner.client)
        weakref.finalize(manager, holder.close)
        self._batch = _Batch(owner, holder, self._options)
        self._running: dict[str, _Running] = {}
        self._step = EngineStep()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()  # the hook passes nothing through this tensor

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> torch.Tensor:
        """Begin the step that will have a row of logits for each of these requests, in this order."""
        began = time.perf_counter()
        self._remove_cancelled()
        self._step = EngineStep()
        for row, future in enumerate(requests_with_new_token):
            if self._has_chain(future.state):
                running = self._track(future.state)
                self._step.add(running, running.new_ids(), row)
        if self._step.requests:
            self._batch.begin(self._step)
            self.owner.seconds += time.perf_counter() - began
        else:
            self._batch.send_changes()
        return torch.empty(0, dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - fixed interface
        """Finish the step, in place. Other rows belong to requests without processors, or to unfinished prompts."""
        step, self._step = self._step, EngineStep()
        if step.requests:
            began = time.perf_counter()
            self._batch.finish(step, scores)
            self.owner.steps += 1
            self.owner.seconds += time.perf_counter() - began
        return scores

    def _has_chain(self, state: RequestState) -> bool:
        return bool(state.logit_processor_kwargs.get(KEY, self.owner.default_chain))

    def _options(self) -> dict[str, Any]:
        manager = self._manager()
        assert manager is not None  # noqa: S101 - it runs
        ends = manager.generation_config.eos_token_id
        end_ids = [] if ends is None else np.atleast_1d(ends).tolist()
        return {
            "eos_token_ids": [token_id for token_id in end_ids if token_id >= 0],  # -1 stands for none there
            "vocab_size": manager.model.config.get_text_config().vocab_size,
            "dtype": torch.float32,  # transformers converts the logits to it, whatever the model computes in
            "device": str(manager.model.device),
            "tokenizer_id": self.owner.tokenizer_id,
            "engine": f"transformers {transformers.__version__}, continuous batching",
        }

    def _track(self, state: RequestState) -> _Running:
        """Return the tracked request of this state, admitting a new one."""
        running = self._running.get(state.request_id)
        if running is not None and running.matches(state):
            running.state = state
            return running
        if running is not None:
            self._batch.release(running)

        def make_request() -> Request:
            chain = chain_of(state.logit_processor_kwargs, self.owner.default_chain)
            tenant = state.logit_processor_kwargs.get(tenants.KEY, self.owner.tenant)
            return Request(*_history(state), chain, state.request_id, tenant=tenant)

        running = self._running[state.request_id] = _Running(state)
        self._batch.admit(running, make_request)
        return running

    def _remove_cancelled(self) -> None:
        manager = self._manager()
        if manager is None or manager.batch_processor is None or not self._running:
            return
        scheduler = manager.batch_processor.scheduler
        for request_id in [one for one in self._running if scheduler.request_is_cancelled(one)]:
            self._batch.release(self._running.pop(request_id))


@dataclass(eq=False)
class _Running(TrackedRequest):
    """A request of the session and its state in the manager, which replaces the state when it offloads the request."""

    state: RequestState

    def matches(self, state: RequestState) -> bool:
        """Return whether the state belongs to this request, not to another one with the same name."""
        if state is self.state:
            return True
        if self.handle is None:
            return False
        known, (prompt, output) = self.handle.history, _history(state)
        return known.prompt_length == len(prompt) and known.token_ids.tolist() == [*prompt, *output][: len(known)]

    def new_ids(self) -> list[int]:
        """Return the ids that the session does not have yet."""
        if self.handle is None:
            return []  # it is admitted with them
        known, prefill = len(self.handle.history), len(self.state.initial_tokens)
        return self.state.initial_tokens[known:] + self.state.generated_tokens[max(0, known - prefill) :]


def _history(state: RequestState) -> tuple[list[int], list[int]]:
    """Return prompt and output. The `initial_tokens` of a recreated state hold parts of both."""
    so_far: GenerationOutput = state.to_generation_output()  # type: ignore[no-untyped-call]
    return so_far.prompt_ids, so_far.generated_tokens


class _Batch(EngineBatch):
    """The requests of one manager, whose processors no front end has tried: their admission may take longer."""

    def __init__(
        self, owner: RemoteLogitsProcessor, holder: SessionHolder, options: Callable[[], Mapping[str, Any]]
    ) -> None:
        super().__init__(holder, options, Ranks(), "generate_batch", owner.client.timeout)
        self._owner = owner

    def on_admitted(self, request: _Running) -> None:
        self._owner.handles[request.state.request_id] = cast("Handle", request.handle)

    def on_applied(self, step: EngineStep, result: StepResult) -> None:  # noqa: ARG002 - fixed interface
        self._owner.rows_applied.update(result.rows_applied)

    def on_failed(self, request: Any, error: LogitportError) -> None:
        """End a request at its next id, which is dropped. transformers itself can only fail whole batches."""
        state = request.state
        state.error = f"{type(error).__name__}: {error}"
        state._new_tokens_limit = state.generated_len()


def _check_supported(manager: ContinuousBatchingManager, *, is_attached: bool) -> None:
    """Raise InvalidArgument as `RemoteLogitsProcessor.attach`."""
    config = manager.continuous_batching_config
    reasons = {
        "another RemoteLogitsProcessor is attached; use one for both": is_attached,
        "the manager was started or warmed up; attach before that": manager.batch_processor is not None,
        "asynchronous batching begins a step before the last step's ids are known; pass "
        "ContinuousBatchingConfig(use_async_batching=False)": config.use_async_batching,
        "accelerator graphs are replayed without Python; pass ContinuousBatchingConfig(use_cuda_graph=False)": any(
            config.cuda_graph_booleans
        ),
        "compiled steps cannot wait for the service; leave varlen_compile_config, decode_compile_config and "
        "default_compile_level of ContinuousBatchingConfig unset": config.varlen_compile_config is not None
        or config.decode_compile_config is not None,
        "tensor-parallel ranks would call the service separately and could diverge; use one device": (
            manager.distributed_helper.tp_size > 1
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise InvalidArgument(f"logitport does not support this continuous batching: {reason}")
