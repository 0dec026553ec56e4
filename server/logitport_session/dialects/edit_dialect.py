"""logitport's own logits-free dialect: `EditProcessor`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from logitport.core.compiled import core
from logitport.core.declared import complete_params, declared_params
from logitport.core.edits import Edits, RowEdits
from logitport.core.row_edits import EditKind
from logitport.core.row_events import RowEvent
from logitport.errors import InvalidArgument
from logitport.phases import read_phase, tags_for, tracker_fields
from logitport.processors import EditProcessor, EditRequest
from logitport.stateful import is_compiled, runs_state_only
from logitport_session.dialects.base import (
    BYTES_PER_PARAMS_BYTE,
    Dialect,
    EditsResult,
    RequestContext,
    events_of,
    is_method,
)
from logitport_session.dialects.phased_request import PhasedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from logitport.phases import PhaseTags
    from logitport_core._core import State


class EditDialect(Dialect):
    """Calls a processor with history and parameters; it returns edits.

    If calls of the processor only call a state of the compiled core, a step makes one call of the core.
    """

    reusable = True
    reads_logits = False
    processor: EditProcessor

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(processor, name, shipped=shipped)
        self._runs_state_only = runs_state_only(self.processor)
        # Whether all states so far are compiled. Then no call checks them again.
        self._compiled = self._runs_state_only and core is not None
        self._shares_states = bool(getattr(self.processor, "shares_states", False))
        if not shipped:  # other code could declare anything
            self.bytes_per_id = getattr(self.processor, "bytes_per_id", 0)
            self.bytes_per_output_id = getattr(self.processor, "bytes_per_output_id", 0)
            self.bytes_per_params_byte = getattr(self.processor, "bytes_per_params_byte", BYTES_PER_PARAMS_BYTE)

    def compiled_state(self, state: EditRequest) -> State | None:
        """The request's state, if it is compiled, and calls of the processor do nothing but call it."""
        return state.state if self._runs_state_only and is_compiled(state.state) else None

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
        self._check_params(partial(self.processor.validate_for, caller), read_phase(params)[1])

    def start(self, context: RequestContext, params: dict[str, Any]) -> EditRequest:
        choice, own = read_phase(params)
        request = _edit_request(context, complete_params(type(self.processor), own), choice.tags)
        if choice.phase is None:
            self._start(request)
            return request
        tags = tags_for(choice, context.tokenizer_id, context.vocab_size)
        phased = PhasedRequest(request, self.processor, choice.phase, tags)
        if self.compiled_state(phased) is None:
            self._compiled = False
            return phased
        request.state = core.PhasedState(phased.state, request.history, choice.phase, *tracker_fields(tags))
        return request

    def start_like(self, earlier: EditRequest, context: RequestContext, params: dict[str, Any]) -> EditRequest:
        if not (self._compiled and self._shares_states) or read_phase(params)[0].phase is not None:
            return self.start(context, params)
        request = _edit_request(context, earlier.params)
        request.state = earlier.state
        return request

    def token_callback(self, state: EditRequest) -> Callable[[int], object] | None:
        if isinstance(state, PhasedRequest):
            return state.advance
        if type(self.processor).advance is EditProcessor.advance:
            return None
        if self._runs_state_only and not state.state.advances:
            return None
        return partial(self.processor.advance, state)

    def rewind(self, state: EditRequest) -> None:
        if isinstance(state, PhasedRequest):
            state.rewind()
        else:
            state.history_cut()
            self.processor.rewind(state)

    def rebuild(self, state: EditRequest) -> None:
        if isinstance(state, PhasedRequest):
            state.restart()
        elif core is not None and isinstance(state.state, core.PhasedState):
            state.state.restart(state.history)
        else:
            state.history_cut(wholly=True)
            state.state = None
            self._start(state)

    def edit(self, states: Sequence[EditRequest]) -> EditsResult:
        if self._compiled:
            histories = [request.history for request in states]
            columns, events = core.edit_rows([one.state for one in states], histories, states[0].vocab_size)
            self.events = [(row, RowEvent(name, values)) for row, name, values in events] if events else ()
            return Edits(*columns)
        edits = [RowEdits() for _ in states]
        rows = [(state, row) for state, row in zip(states, edits, strict=True) if _holds(state)]
        if rows:
            self.processor.edit_batch([state for state, _ in rows], [row for _, row in rows])
        for state, row in rows:
            if isinstance(state, PhasedRequest):
                state.exempt(row)
        self.events = events_of(edits)
        if self.denies_without == () and any(kind is EditKind.BIAS for row in edits for kind, _, _ in row):
            raise InvalidArgument("it declares only_denies, and has added to logits: call no edits.bias")
        return edits

    def _start(self, request: EditRequest) -> None:
        self.processor.start(request)
        self._compiled = self._compiled and is_compiled(request.state)


def _holds(state: EditRequest) -> bool:
    """Whether the processor edits the row of a request."""
    return not isinstance(state, PhasedRequest) or state.prepare()


def _edit_request(
    context: RequestContext, params: Mapping[str, Any], phase_tags: PhaseTags | None = None
) -> EditRequest:
    return EditRequest(
        params,
        context.history,
        context.vocab_size,
        tokenizer_id=context.tokenizer_id,
        eos_token_ids=context.eos_token_ids,
        caller=context.caller,
        phase_tags=phase_tags,
    )
