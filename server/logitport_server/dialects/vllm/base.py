"""What vLLM's dialects have in common: a request as their processors see it, parameters, temperature."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from logitport import dialects
from logitport.errors import InvalidParams, LogitportError
from logitport_server.dialects.base import Dialect, RequestContext, is_greedy
from logitport_server.dialects.results import check_result
from logitport_server.dialects.vllm import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from logitport.core.history import History


@dataclass(eq=False, slots=True)
class VllmRequest:
    """A request as processors see it.

    Attributes:
        sampling_params: vLLM's SamplingParams.
        prompt_token_ids: its prompt.
        output_token_ids: its output; the same list for the request's whole life.
        history: the same, as the session keeps it.
        call: what is called with its rows, if its processor works on single rows; None if nothing is.
    """

    sampling_params: Any
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    history: History
    call: Callable[..., Any] | None = None

    @property
    def temperature(self) -> float:
        """What vLLM divides its logits by."""
        temperature = float(self.sampling_params.temperature)
        return 1.0 if is_greedy(temperature) else temperature

    def take_output(self) -> None:
        """Bring the list in line with the history."""
        self.output_token_ids[:] = self.history.output_token_ids.tolist()


class VllmDialect(Dialect):
    """Logits in, logits out, as float32, in which vLLM computes.

    The instance is made when the first request comes: only then is the width of the logits known.
    """

    reads_logits = True

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(None, name, shipped=shipped)
        self._shipped_as = processor

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],
        caller: Hashable = None,  # noqa: ARG002
    ) -> None:
        """Raises InvalidParams with the processor's message if it refuses them."""
        self._check(objects.sampling_params(sampling_params, params))

    def start(self, context: RequestContext, params: dict[str, Any]) -> VllmRequest:
        if self.processor is None:
            self.processor = self._make(context)
            self.argmax_invariant = _is_argmax_invariant(self.processor)
        history = context.history
        made = objects.sampling_params(context.sampling_params, params, context.eos_token_ids)
        self._check(made)  # again: what it changes in them, stays
        return VllmRequest(made, history.prompt_token_ids.tolist(), history.output_token_ids.tolist(), history)

    def token_callback(self, state: VllmRequest) -> Callable[[int], object] | None:
        return state.output_token_ids.append

    def rewind(self, state: VllmRequest) -> None:
        state.take_output()

    def rebuild(self, state: VllmRequest) -> None:
        self.rewind(state)

    def process(self, states: Sequence[VllmRequest], logits: torch.Tensor) -> torch.Tensor:
        self.failed = {}
        logits = logits.float()
        temperatures = [state.temperature for state in states] if self.argmax_invariant else ()
        if all(temperature == 1.0 for temperature in temperatures):
            return self._process(states, logits)
        # vLLM calls what is argmax-invariant after it has applied the temperature, which engines here do afterwards.
        divisor = logits.new_tensor(temperatures).unsqueeze(1)
        divided = logits / divisor
        result = self._process(states, divided.clone())
        check_result(result, logits.shape, self.name)
        return torch.where(result == divided, logits, result * divisor)

    @abstractmethod
    def _process(self, states: Sequence[VllmRequest], logits: torch.Tensor) -> torch.Tensor:
        """`process`, for float32."""

    def _make(self, context: RequestContext) -> Any:
        """The instance for a session. Raises LoadFailed."""
        return objects.construct(self._shipped_as, context)

    def _check(self, sampling_params: Any) -> None:
        validate_params = getattr(dialects.author_of(self._shipped_as), "validate_params", None)
        if validate_params is None:
            return
        try:
            validate_params(sampling_params)
        except Exception as error:
            if not _says_invalid(error):
                raise
            raise InvalidParams(f"processor {self.name}: {error}") from error


def _says_invalid(error: Exception) -> bool:
    """Whether vLLM would tell the caller that its request is at fault, and not log an error of its own."""
    if isinstance(error, LogitportError):
        return False
    return isinstance(error, ValueError | objects.module("vllm.exceptions").VLLMValidationError)


def _is_argmax_invariant(processor: Any) -> bool:
    ask = getattr(processor, "is_argmax_invariant", None)
    return bool(ask()) if ask is not None else False
