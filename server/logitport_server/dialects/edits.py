"""logitport's own logits-free dialect: `EditProcessor`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from logitport.core.declared import complete_params, declared_params
from logitport.core.edits import RowEdits
from logitport.processors import EditProcessor, EditRequest
from logitport_server.dialects.base import Dialect, RequestContext
from logitport_server.dialects.checks import is_method

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


class EditDialect(Dialect):
    """Calls a processor with history and parameters; it returns edits."""

    reusable = True
    reads_logits = False
    processor: EditProcessor

    @property
    def checks_params(self) -> bool:
        processor = self.processor
        inherited = is_method(processor.validate_params, EditProcessor.validate_params)
        inherited = inherited and is_method(processor.validate_for, EditProcessor.validate_for)
        return not inherited or bool(declared_params(type(processor)))

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],  # noqa: ARG002
        caller: Hashable = None,
    ) -> None:
        self._check_params(partial(self.processor.validate_for, caller), params)

    def start(self, context: RequestContext, params: dict[str, Any]) -> EditRequest:
        request = EditRequest(
            complete_params(type(self.processor), params),
            context.history,
            context.vocab_size,
            tokenizer_id=context.tokenizer_id,
            eos_token_ids=context.eos_token_ids,
            caller=context.caller,
        )
        self.processor.start(request)
        return request

    def token_callback(self, state: EditRequest) -> Callable[[int], object] | None:
        if type(self.processor).advance is EditProcessor.advance:
            return None
        return partial(self.processor.advance, state)

    def rewind(self, state: EditRequest) -> None:
        self.processor.rewind(state)

    def rebuild(self, state: EditRequest) -> None:
        state.state = None
        self.processor.start(state)

    def edit(self, states: Sequence[EditRequest]) -> list[RowEdits]:
        edits = [RowEdits() for _ in states]
        self.processor.edit_batch(states, edits)
        return edits
