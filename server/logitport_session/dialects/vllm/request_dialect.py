"""vLLM's processors of single requests: `new_req_logits_processor(params)`, and plain functions of a row."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from logitport import dialects, payload
from logitport.errors import InvalidArgument
from logitport_session.dialects.results import check_result
from logitport_session.dialects.vllm import objects
from logitport_session.dialects.vllm.base import VllmDialect, VllmRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from logitport_session.dialects.base import RequestContext


class VllmRequestDialect(VllmDialect):
    """Calls a processor with one row and the ids of its request; it returns the row. An exception fails only its row.

    The callable may keep state. After the history was cut back, the request gets a new callable.
    """

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        self._author = dialects.author_of(processor)
        self._is_adapter = hasattr(self._author, "new_req_logits_processor")
        if self._is_adapter:
            objects.check_constructor(processor)

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],
        caller: Hashable = None,
    ) -> None:
        if self._is_adapter:
            super().validate(params, sampling_params, caller)
        elif params:
            raise InvalidArgument(
                f"processor {self.name} takes only ids and logits, and would ignore its parameters {sorted(params)}: "
                "send none, or derive it from AdapterLogitsProcessor"
            )

    def start(self, context: RequestContext, params: dict[str, Any]) -> VllmRequest:
        if self._is_adapter:
            request = super().start(context, params)
        else:
            prompt, output = context.history.prompt_token_ids.tolist(), context.history.output_token_ids.tolist()
            request = VllmRequest(None, prompt, output, context.history)
        self._renew(request)
        return request

    def rewind(self, state: VllmRequest) -> None:
        super().rewind(state)
        self._renew(state)

    def _renew(self, request: VllmRequest) -> None:
        """Create the callable of the request, with its ids bound."""
        call = self._new_call(request)
        if not call:
            request.call = None
        elif len(dialects.parameters(call)) == 3:  # vLLM, too, decides by the number of parameters
            request.call = functools.partial(call, request.prompt_token_ids, request.output_token_ids)
        else:
            request.call = functools.partial(call, request.output_token_ids)

    def _new_call(self, request: VllmRequest) -> Callable[..., Any] | None:
        if self._is_adapter:
            made: Callable[..., Any] | None = self.processor.new_req_logits_processor(request.sampling_params)
            return made
        processor = self._source
        if isinstance(self._author, type):  # each request gets its own instance of a callable class
            makes = dialects.makes_instances(processor)
            return payload.instantiate(processor) if makes else objects.copied(processor)  # type: ignore[no-any-return]
        return processor  # type: ignore[no-any-return]

    def _process(self, states: Sequence[VllmRequest], logits: torch.Tensor) -> torch.Tensor:
        failed: dict[int, BaseException] = {}
        for index, state in enumerate(states):
            if state.call is None:
                continue
            row = logits[index]
            shape = row.shape  # the processor may reshape its tensor in place
            try:
                result = state.call(row)
                check_result(result, shape, self.name)
                if not result.is_set_to(logits[index]):
                    logits[index] = result
            except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
                failed[index] = error
        self.failed = failed
        return logits
