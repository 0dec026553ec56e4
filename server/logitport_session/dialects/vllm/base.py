"""The common part of vLLM's dialects: requests as processors see them, parameters, temperature."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from logitport import dialects
from logitport_session.dialects.base import Dialect, RequestContext, is_greedy
from logitport_session.dialects.results import check_result
from logitport_session.dialects.vllm import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from logitport.core.history import History


@dataclass(eq=False, slots=True)
class VllmRequest:
    """A request as processors see it.

    Attributes:
        sampling_params: vLLM's SamplingParams.
        prompt_token_ids: ids of the prompt.
        output_token_ids: ids of the output; the same list object for the request's whole life.
        history: prompt and output, as the session keeps them.
        call: the callable for the request's row, in the dialect for single requests, or None.
    """

    sampling_params: Any
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    history: History
    call: Callable[..., Any] | None = None

    @property
    def temperature(self) -> float:
        """The divisor that vLLM applies to the logits."""
        temperature = float(self.sampling_params.temperature)
        return 1.0 if is_greedy(temperature) else temperature

    def take_output(self) -> None:
        """Copy the output of the history to the list."""
        self.output_token_ids[:] = self.history.output_token_ids.tolist()


class VllmDialect(Dialect):
    """Calls a processor with float32 logits, as vLLM does; it returns logits.

    The instance is created for the first request, because the width of the logits is unknown before.
    """

    checks_sampling_params = True
    reads_logits = True

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(None, name, shipped=shipped)
        self._source = processor

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],
        caller: Hashable = None,  # noqa: ARG002
    ) -> None:
        """Raise InvalidArgument with the processor's message if it rejects the parameters."""
        self._check(objects.sampling_params(sampling_params, params))

    def start(self, context: RequestContext, params: dict[str, Any]) -> VllmRequest:
        if self.processor is None:
            self.processor = self._make(context)
            is_invariant = getattr(self.processor, "is_argmax_invariant", None)
            self.argmax_invariant = is_invariant is not None and bool(is_invariant())
        history = context.history
        made = objects.sampling_params(context.sampling_params, params, context.eos_token_ids)
        self._check(made)  # again, because validate_params may change this object and vLLM keeps such changes
        return VllmRequest(made, history.prompt_token_ids.tolist(), history.output_token_ids.tolist(), history)

    def token_callback(self, state: VllmRequest) -> Callable[[int], object] | None:
        return state.output_token_ids.append

    def rewind(self, state: VllmRequest) -> None:
        state.take_output()

    def process(self, states: Sequence[VllmRequest], logits: torch.Tensor) -> torch.Tensor:
        self.failed = {}
        logits = logits.float()
        temperatures = [state.temperature for state in states] if self.argmax_invariant else ()
        if all(temperature == 1.0 for temperature in temperatures):
            return self._process(states, logits)
        # vLLM applies the temperature before it calls argmax-invariant processors. Engines that call this service
        # apply it afterwards: divide here, and multiply the result.
        divisor = logits.new_tensor(temperatures).unsqueeze(1)
        divided = logits / divisor
        result = self._process(states, divided.clone())
        check_result(result, logits.shape, self.name)
        return torch.where(result == divided, logits, result * divisor)

    @abstractmethod
    def _process(self, states: Sequence[VllmRequest], logits: torch.Tensor) -> torch.Tensor:
        """Process float32[rows, vocab_size], in place or not."""

    def _make(self, context: RequestContext) -> Any:
        """Create the instance for a session. Raises PayloadError."""
        return objects.construct(self._source, context)

    def _check(self, sampling_params: Any) -> None:
        self._check_params(getattr(dialects.author_of(self._source), "validate_params", None), sampling_params)

    def _is_refusal(self, error: Exception) -> bool:
        """Whether vLLM would report the error to the caller as an invalid request, instead of as a server error."""
        return isinstance(error, ValueError | objects.module("vllm.exceptions").VLLMValidationError)
