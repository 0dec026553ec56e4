"""Hugging Face transformers' dialect: `LogitsProcessor`, as `generate` of transformers 5.23.0 calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from logitport_session.dialects.results import check_result
from logitport_session.dialects.snapshot import Snapshot
from logitport_session.dialects.transformers.instances import (
    InstanceDialect,
    InstanceState,
    is_stateless,
    takes_any_history,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport.core.history import History
    from logitport_session.dialects.base import RequestContext

_MIN_CAPACITY = 64


class InputIds:
    """Keeps a copy of a history on a device; each update copies only the new ids."""

    __slots__ = ("_buffer", "_history", "_num_valid")

    def __init__(self, history: History) -> None:
        self._history = history
        self._buffer = torch.empty(0, dtype=torch.int64)
        # Number of valid ids at the start of the buffer.
        self._num_valid = 0

    def __len__(self) -> int:
        return self._history.length

    def on(self, device: torch.device) -> torch.Tensor:
        """Return prompt and output, int64[1, length]; a view that is valid until the history is cut back."""
        length = self._history.length
        if length > len(self._buffer) or self._buffer.device != device:
            grown = torch.empty(max(2 * length, _MIN_CAPACITY), dtype=torch.int64, device=device)
            grown[: self._num_valid] = self._buffer[: self._num_valid]
            self._buffer = grown
        if length > self._num_valid:
            self._buffer[self._num_valid : length] = torch.from_numpy(self._history.token_ids[self._num_valid :])
            self._num_valid = length
        return self._buffer[:length].unsqueeze(0)

    def cut(self) -> None:
        """Follow a history that was cut back to its present length."""
        self._num_valid = min(self._num_valid, self._history.length)


@dataclass(slots=True, eq=False)
class _TransformersState(InstanceState):
    """State of a request. `any_history` states whether the processor ignores the history."""

    input_ids: InputIds
    any_history: bool


class TransformersDialect(InstanceDialect):
    """Calls a processor with the ids and scores of one request; of several, if it is known to be stateless.

    Scores are float32 whatever the engine's logits are, as in `generate`.
    """

    def start(self, context: RequestContext, params: dict[str, Any]) -> _TransformersState:
        made = self._instances.make(context, params)
        initial = None if is_stateless(made) else Snapshot(made)
        return _TransformersState(context.request_id, made, initial, InputIds(context.history), takes_any_history(made))

    def rewind(self, state: _TransformersState) -> None:
        self.check_rebuildable(state)
        state.input_ids.cut()

    def process(self, states: Sequence[_TransformersState], logits: torch.Tensor) -> torch.Tensor:
        self.failed = failed = dict[int, BaseException]()
        for indices in _calls(states):
            error = self._call(states, indices, logits)
            if error is None:
                continue
            for index in indices:
                alone = error if len(indices) == 1 else self._call(states, [index], logits)
                if alone is not None:
                    failed[index] = alone
        return logits

    def _call(
        self, states: Sequence[_TransformersState], indices: Sequence[int], logits: torch.Tensor
    ) -> BaseException | None:
        """Make one call for these rows. Their states share a processor. Returns the exception, if any."""
        first, end = indices[0], indices[-1] + 1
        adjoining = end - first == len(indices)
        rows = logits[first:end] if adjoining else logits[[*indices]]
        scores = rows[:].float()  # a separate tensor object, which the processor may reshape in place
        try:
            result = states[first].processor(_input_ids([states[index] for index in indices], logits), scores)
            check_result(result, rows.shape, self.name)
            result = _saturated(result, logits)
        except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
            return error
        if not adjoining:
            logits[[*indices]] = result
        elif not result.is_set_to(rows):
            rows.copy_(result)
        return None


def _calls(states: Sequence[_TransformersState]) -> Iterable[list[int]]:
    """Group the indices of the rows by the call that serves them."""
    calls: dict[tuple[int, ...], list[int]] = {}
    for index, state in enumerate(states):
        if state.initial is not None:
            key: tuple[int, ...] = (index,)
        else:
            key = (id(state.processor), -1 if state.any_history else len(state.input_ids))
        calls.setdefault(key, []).append(index)
    return calls.values()


def _input_ids(states: Sequence[_TransformersState], logits: torch.Tensor) -> torch.Tensor | None:
    """Return int64[rows, length]; None for several rows if the processor ignores the history: lengths may differ."""
    if len(states) > 1 and states[0].any_history:
        return None
    ids = [state.input_ids.on(logits.device) for state in states]
    return ids[0] if len(ids) == 1 else torch.cat(ids)


def _saturated(result: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Convert to the dtype of the logits; large finite numbers are clamped, so that none becomes infinite."""
    limits = torch.finfo(logits.dtype)
    if torch.finfo(result.dtype).max > limits.max:
        result = torch.where(result.isinf(), result, result.clamp(limits.min, limits.max))
    return result.to(logits)
