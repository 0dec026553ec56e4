"""logitport as a logits processor of transformers' continuous batching."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import ContinuousBatchingManager
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from logitport.errors import InvalidArgument, LogitportError
from logitport.integrations.common.chains import KEY, chain_of
from logitport.integrations.common.circuit_breaker import SESSION_ERRORS
from logitport.integrations.common.history_batch import is_chain
from logitport.integrations.common.session_holder import SessionHolder
from logitport.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from transformers import PreTrainedModel
    from transformers.generation.continuous_batching.requests import (
        FutureRequestState,
        GenerationOutput,
        RequestState,
    )

    from logitport.client import Client
    from logitport.integrations.common.history_batch import Chain
    from logitport.session.frames import Handle
    from logitport.session.session import Session
    from logitport.session.step import PendingStep


class RemoteLogitsProcessor:
    """Has the service process the logits of `ContinuousBatchingManager` and of `model.generate_batch`.

    transformers takes no processors of one's own there, so this one is put where they belong, behind transformers' own
    and before temperature and the like:

        with remote.attached(model):
            outputs = model.generate_batch(prompts, generation_config)

    A request may ask for processors of its own, `manager.add_request(ids, logitport=[["thinking_budget", {...}]])`.
    The service is told of what was sampled before the model runs, and computes while it does. Requests that are put off
    and started again keep what their processors know. A request whose processor fails ends there, with the error in
    its `GenerationOutput.error`; the others go on.

    Args:
        client: the connection; stays open.
        processors: (processor, parameters) pairs for requests that ask for none.

    Attributes:
        steps: forward passes with a request that has processors.
        rows_applied: rows by processor, as in `StepResult`, of all steps together.
        seconds: time spent in here, opening sessions included.

    Raises:
        InvalidArgument: `processors` is no list of pairs.
    """

    def __init__(self, client: Client, processors: Chain = ()) -> None:
        if not is_chain(processors):
            raise InvalidArgument(
                "processors: (processor, parameters) pairs are wanted, such as "
                "[('disallowed_tokens', {'token_ids': [1]})]"
            )
        self.client = client
        self.default_chain = processors
        self.steps = 0
        self.rows_applied: Counter[str] = Counter()
        self.seconds = 0.0

    @contextmanager
    def attached(self, model: PreTrainedModel) -> Iterator[None]:
        """Every manager that the model makes in this context, also for `generate_batch`, has its logits processed."""
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
        """Have the logits of a manager processed that was neither started nor warmed up, and return it.

        Raises:
            InvalidArgument: it was; or it runs in a way in which Python cannot take part in a step, or cannot know its
                history, and the message says which option to set.
        """
        processors = manager.logit_processor
        attached = [one.owner for one in processors.logits_processor if isinstance(one, _Hook)]
        if attached == [self]:
            return manager
        _refuse_what_cannot_be_right(manager, is_attached=bool(attached))
        hook = _Hook(self, manager)
        warpers = [type(one).__name__.endswith("LogitsWarper") for one in processors.logits_processor]
        processors.logits_processor.insert(warpers.index(True) if any(warpers) else len(warpers), hook)
        processors.tensors_required += 1
        processors.supported_keys.update(hook.supported_kwargs)
        processors.do_processing = True
        return manager


class _Hook(ContinuousBatchingLogitsProcessor):
    """What one manager runs: `prepare_tensor_args` before the forward pass, `__call__` behind it."""

    supported_kwargs = {KEY: list}  # noqa: RUF012 - named and typed by transformers
    ignored_kwargs = ()

    def __init__(self, owner: RemoteLogitsProcessor, manager: ContinuousBatchingManager) -> None:
        self.owner = owner
        self._manager = weakref.ref(manager)
        self._holder = SessionHolder(lambda: owner.client)
        weakref.finalize(manager, self._holder.close)
        self._running: dict[str, _Running] = {}
        self._step: _Step | None = None

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()  # nothing travels in it

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> torch.Tensor:
        """Begin the step that will have a row of logits for each of these requests, in this order."""
        began = time.perf_counter()
        states = [future.state for future in requests_with_new_token]
        self._forget_ended()
        self._step = None
        asking = {row: state for row, state in enumerate(states) if self._asks(state)}
        if asking:
            try:
                self._step = self._begin(asking)
            except LogitportError as error:
                self._fail(asking.values(), error)
            self.owner.seconds += time.perf_counter() - began
        return torch.empty(0, dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - their contract
        """Finish the step, in place. Rows that nobody asked for are those of prompts which are read in parts."""
        step, self._step = self._step, None
        if step is None:
            return scores
        began = time.perf_counter()
        rows = list(step.running)
        selected = scores if rows == list(range(len(scores))) else scores[rows]
        try:
            result = step.pending.apply(selected, check=False)
        except LogitportError as error:
            self._fail([running.state for running in step.running.values()], error)
        else:
            self._holder.answered()
            for running in step.running.values():
                if running.handle in result.failures:
                    self._fail([running.state], result.failures[running.handle])
            self.owner.rows_applied.update(result.rows_applied)
        if selected is not scores:
            scores[rows] = selected
        self.owner.steps += 1
        self.owner.seconds += time.perf_counter() - began
        return scores

    def _asks(self, state: RequestState) -> bool:
        return bool(state.logit_processor_kwargs.get(KEY, self.owner.default_chain))

    def _begin(self, asking: Mapping[int, RequestState]) -> _Step | None:
        """Begin a step for these, by their rows; those that are refused end. Raises what is wrong with the session."""
        session = self._holder.opened(self._options)
        running: dict[int, _Running] = {}
        for row, state in asking.items():
            try:
                running[row] = self._follow(state, session)
            except SESSION_ERRORS:
                raise
            except LogitportError as error:
                self._fail([state], error)
        if not running:
            return None
        return _Step(session.step({one.handle: one.new_ids() for one in running.values()}), running)

    def _options(self) -> dict[str, Any]:
        manager = self._manager()
        assert manager is not None  # noqa: S101 - it runs
        return {
            "vocab_size": manager.model.config.get_text_config().vocab_size,
            "dtype": torch.float32,  # to which transformers converts whatever the model computes in
            "device": str(manager.model.device),
            "engine": f"transformers {transformers.__version__}, continuous batching",
        }

    def _follow(self, state: RequestState, session: Session) -> _Running:
        """The request behind this state; admitted, if it is new. Raises as `Session.add`, and InvalidParams."""
        running = self._running.get(state.request_id)
        if running is not None and running.goes_on_as(state):
            running.state = state
            return running
        if running is not None:
            session.remove(self._running.pop(state.request_id).handle)
        chain = chain_of(state.logit_processor_kwargs, self.owner.default_chain)
        request = Request(*_history(state), chain, state.request_id)
        running = self._running[state.request_id] = _Running(session.add(request), state)
        return running

    def _forget_ended(self) -> None:
        manager = self._manager()
        if manager is None or manager.batch_processor is None or self._holder.session is None:
            return
        scheduler = manager.batch_processor.scheduler
        try:
            for request_id in [one for one in self._running if scheduler.request_is_cancelled(one)]:
                self._holder.session.remove(self._running.pop(request_id).handle)
        except LogitportError as error:
            self._fail((), error)

    def _fail(self, states: Iterable[RequestState], error: LogitportError) -> None:
        """These requests end. What is wrong with the session ends all that are in it; who comes next gets another."""
        if isinstance(error, SESSION_ERRORS):
            _fail([running.state for running in self._running.values()], error)
            self._running.clear()
            self._holder.lose(error)
        _fail(states, error)


@dataclass
class _Running:
    """A request of the session, and of the manager. A manager that needs room makes another state for it."""

    handle: Handle
    state: RequestState

    def goes_on_as(self, state: RequestState) -> bool:
        """Whether this is the same request, and not another one of the same name."""
        if state is self.state:
            return True
        told, (prompt, output) = self.handle.history, _history(state)
        return told.prompt_length == len(prompt) and told.token_ids.tolist() == [*prompt, *output][: len(told)]

    def new_ids(self) -> list[int]:
        """Those that the session has not been told."""
        told, prefill = len(self.handle.history), len(self.state.initial_tokens)
        return self.state.initial_tokens[told:] + self.state.generated_tokens[max(0, told - prefill) :]


@dataclass(frozen=True)
class _Step:
    """A step under way, and the requests in it by their rows."""

    pending: PendingStep
    running: Mapping[int, _Running]


def _history(state: RequestState) -> tuple[list[int], list[int]]:
    """Prompt and output; the `initial_tokens` of a state that was made again hold some of both."""
    so_far: GenerationOutput = state.to_generation_output()  # type: ignore[no-untyped-call]
    return so_far.prompt_ids, so_far.generated_tokens


def _fail(states: Iterable[RequestState], error: LogitportError) -> None:
    """End these requests at their next id, which is dropped. transformers itself can only fail whole batches."""
    for state in states:
        state.error = f"{type(error).__name__}: {error}"
        state._new_tokens_limit = state.generated_len()


def _refuse_what_cannot_be_right(manager: ContinuousBatchingManager, *, is_attached: bool) -> None:
    """Raises InvalidArgument as `RemoteLogitsProcessor.attach`."""
    config = manager.continuous_batching_config
    refusals = {
        "another RemoteLogitsProcessor is attached; make one of both": is_attached,
        "the manager was started or warmed up; attach before that": manager.batch_processor is not None,
        "asynchronous batching begins a step before it knows what the last one sampled; pass "
        "ContinuousBatchingConfig(use_async_batching=False)": config.use_async_batching,
        "accelerator graphs are replayed without Python; pass ContinuousBatchingConfig(use_cuda_graph=False)": any(
            config.cuda_graph_booleans
        ),
        "compiled steps cannot wait for the service; leave varlen_compile_config, decode_compile_config and "
        "default_compile_level of ContinuousBatchingConfig out": config.varlen_compile_config is not None
        or config.decode_compile_config is not None,
        "ranks of tensor parallelism would ask one by one, and a late answer would part them; use one device": (
            manager.distributed_helper.tp_size > 1
        ),
    }
    for refusal, applies in refusals.items():
        if applies:
            raise InvalidArgument(f"logitport cannot serve this continuous batching: {refusal}")
