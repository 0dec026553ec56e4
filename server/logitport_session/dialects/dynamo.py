"""NVIDIA Dynamo's dialect: `BaseLogitsProcessor`, as the adapters of Dynamo 1.x call it: one row, edited in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport_session.dialects.snapshot import Snapshot
from logitport_session.dialects.transformers.instances import InstanceDialect, InstanceState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from logitport.core.history import History
    from logitport_session.dialects.base import RequestContext


@dataclass(slots=True, eq=False)
class _DynamoState(InstanceState):
    """State of a request. The processor gets `input_ids`, the same object for the request's whole life."""

    history: History
    input_ids: list[int]


class DynamoDialect(InstanceDialect):
    """Calls a processor with the ids and the row of one request. It edits the row; its result is ignored.

    Each request has an instance of its own. An exception fails only its request.
    """

    def start(self, context: RequestContext, params: dict[str, Any]) -> _DynamoState:
        made = self._instances.make(context, params)
        history = context.history
        return _DynamoState(context.request_id, made, Snapshot(made), history, history.token_ids.tolist())

    def token_callback(self, state: _DynamoState) -> Callable[[int], object]:
        return state.input_ids.append

    def rewind(self, state: _DynamoState) -> None:
        self.check_rebuildable(state)
        state.input_ids[:] = state.history.token_ids.tolist()

    def process(self, states: Sequence[_DynamoState], logits: torch.Tensor) -> torch.Tensor:
        self.failed = failed = dict[int, BaseException]()
        for row, state in enumerate(states):
            try:
                state.processor(state.input_ids, logits[row])
            except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
                failed[row] = error
        return logits
