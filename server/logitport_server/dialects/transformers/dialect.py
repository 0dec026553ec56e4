"""Hugging Face transformers' dialect: `LogitsProcessor`, as `generate` of transformers 5.23.0 calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from logitport.dialects import author_of
from logitport.errors import StateLost
from logitport_server.dialects.base import Dialect, RequestContext
from logitport_server.dialects.results import check_result
from logitport_server.dialects.snapshot import Snapshot
from logitport_server.dialects.transformers.input_ids import InputIds
from logitport_server.dialects.transformers.instances import Instances
from logitport_server.dialects.transformers.stateless import is_stateless, takes_any_history

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence


@dataclass(slots=True, eq=False)
class _State:
    """One request.

    Attributes:
        request_id: the engine's name for it.
        input_ids: its history.
        processor: its own instance, or one that keeps nothing.
        at_first: what the instance held as it was made; None if it keeps nothing.
        any_history: whether it takes no notice of the history.
    """

    request_id: str
    input_ids: InputIds
    processor: Callable[[torch.Tensor | None, torch.Tensor], torch.Tensor]
    at_first: Snapshot | None
    any_history: bool


class TransformersDialect(Dialect):
    """Ids and scores of one request in, scores out; of several requests, where a processor is known to keep nothing.

    Scores are float32 whatever the engine's logits are, as in `generate`.
    """

    reads_logits = True

    def __init__(self, processor: Any, name: str, *, shipped: bool) -> None:
        super().__init__(None, name, shipped=shipped)
        self.processor = processor
        self._instances = Instances(processor, name)

    def validate(
        self,
        params: dict[str, Any],
        sampling_params: dict[str, Any],  # noqa: ARG002
        caller: Hashable = None,  # noqa: ARG002
    ) -> None:
        validate_params = getattr(author_of(self.processor), "validate_params", None)
        if validate_params is not None:
            validate_params(params)

    def start(self, context: RequestContext, params: dict[str, Any]) -> _State:
        made = self._instances.make(context, params)
        at_first = None if is_stateless(made) else Snapshot(made)
        return _State(context.request_id, InputIds(context.history), made, at_first, takes_any_history(made))

    def token_callback(self, state: _State) -> None:  # noqa: ARG002 - a call looks what is new
        return None

    def rewind(self, state: _State) -> None:
        self.check_rebuildable(state)
        state.input_ids.cut()

    def rebuild(self, state: _State) -> None:
        self.rewind(state)

    def check_rebuildable(self, state: _State) -> None:
        if state.at_first is not None and Snapshot(state.processor) != state.at_first:
            raise StateLost(
                f"request {state.request_id!r}: its history was changed, and {self.name} keeps state of its own that "
                "cannot follow; remove the request and add it again"
            )

    def process(self, states: Sequence[_State], logits: torch.Tensor) -> torch.Tensor:
        self.failed = failed = dict[int, BaseException]()
        for places in _calls(states):
            error = self._call(states, places, logits)
            if error is None:
                continue
            for place in places:
                alone = error if len(places) == 1 else self._call(states, [place], logits)
                if alone is not None:
                    failed[place] = alone
        return logits

    def _call(self, states: Sequence[_State], places: Sequence[int], logits: torch.Tensor) -> BaseException | None:
        """One call, for the rows at these places, whose states have one processor; what it raised."""
        first, end = places[0], places[-1] + 1
        adjoining = end - first == len(places)
        rows = logits[first:end] if adjoining else logits[[*places]]
        scores = rows[:].float()  # an object of the processor's own: it may reshape it in place
        try:
            result = states[first].processor(_input_ids([states[place] for place in places], logits), scores)
            check_result(result, rows.shape, self.name)
            result = _saturated(result, logits)
        except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
            return error
        if not adjoining:
            logits[[*places]] = result
        elif not result.is_set_to(rows):
            rows.copy_(result)
        return None


def _calls(states: Sequence[_State]) -> Iterable[list[int]]:
    """The places that one call serves, of all calls."""
    calls: dict[tuple[int, ...], list[int]] = {}
    for place, state in enumerate(states):
        if state.at_first is not None:
            key: tuple[int, ...] = (place,)
        else:
            key = (id(state.processor), -1 if state.any_history else len(state.input_ids))
        calls.setdefault(key, []).append(place)
    return calls.values()


def _input_ids(states: Sequence[_State], logits: torch.Tensor) -> torch.Tensor | None:
    """int64[rows, length]; None for several rows that may be of any length: whoever looks at it is called for each."""
    if len(states) > 1 and states[0].any_history:
        return None
    ids = [state.input_ids.on(logits.device) for state in states]
    return ids[0] if len(ids) == 1 else torch.cat(ids)


def _saturated(result: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """As the logits are, in whose dtype no large number is to become an infinite one."""
    limits = torch.finfo(logits.dtype)
    if torch.finfo(result.dtype).max > limits.max:
        result = torch.where(result.isinf(), result, result.clamp(limits.min, limits.max))
    return result.to(logits)
