"""logitport's own logits-free dialect: `EditProcessor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.processors import EditProcessor, EditRequest
from logitport_server.dialects.base import Dialect, RequestContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.edits import RowEdits


class EditDialect(Dialect):
    """History and parameters in, edits out."""

    reads_logits = False
    processor: EditProcessor

    def __init__(self, processor: EditProcessor, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        self.advances = type(processor).advance is not EditProcessor.advance

    def start(self, context: RequestContext, params: dict[str, Any]) -> EditRequest:
        request = EditRequest(params, context.history, context.vocab_size)
        self.processor.start(request)
        return request

    def advance(self, state: EditRequest, token_id: int) -> None:
        self.processor.advance(state, token_id)

    def rewind(self, state: EditRequest) -> None:
        self.processor.rewind(state)

    def edit(self, states: Sequence[EditRequest], edits: Sequence[RowEdits]) -> None:
        self.processor.edit_batch(states, edits)
