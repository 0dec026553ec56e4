"""The chain of one request in a batch: as a server runs it, or without the processors that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from logitport.core.history import listed_ids
from logitport.errors import LogitportError
from logitport_testing.runner import ProcessorInfo, RowResult, RowStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.shipping.request import ProcessorLike, Request
    from logitport_testing.runner import Batch
    from logitport_testing.step_records.stages import ChainResult


class WholeChain:
    """Runs the chain as a server does: after a failure, no processor has an effect.

    Args:
        batch: an empty one.
        request: the request, without output.

    Attributes:
        infos: the processors.

    Raises:
        LogitportError: a server would refuse the request.
    """

    def __init__(self, batch: Batch, request: Request) -> None:
        self._slot = _Slot(batch, 0, request, listed_ids(request.prompt_token_ids))
        self.infos = self._slot.infos

    def step(self, history: Sequence[int], logits: NDArray[np.float32]) -> ChainResult:
        """Run one step.

        Args:
            history: the ids of prompt and output. It begins with the history of the step before.
            logits: the model's, float32[vocab_size].
        """
        return self._slot.step(history, logits), {}


class IsolatedChain:
    """Leaves a processor out of the steps where it fails; the others run. It is called again in the next step.

    A processor that a server would not admit is left out of all steps. The chain runs as on a server in each step in
    which none fails. It has the interface of `WholeChain`.

    Raises:
        LogitportError: a server would refuse the request without processors.
    """

    def __init__(self, batch: Batch, request: Request) -> None:
        self._batch = batch
        self._request = replace(request, on_error="skip")
        self._refused: dict[int, LogitportError] = {}
        self._slots: dict[tuple[int, ...], _Slot] = {}  # by the places of the processors that run
        self._next_slot = 0
        self._admit((), listed_ids(request.prompt_token_ids)).remove()
        self.infos = tuple(self._info(place, processor) for place, (processor, _) in enumerate(request.processors))

    def step(self, history: Sequence[int], logits: NDArray[np.float32]) -> ChainResult:
        errors = dict(self._refused)
        while True:
            running = tuple(place for place in range(len(self.infos)) if place not in errors)
            try:
                if running not in self._slots:
                    self._slots[running] = self._admit(running, history)
                row = self._slots[running].step(history, logits)
            except LogitportError as error:  # of the admission with these ids
                row = RowResult(logits, (None,) * len(running), error)
            if row.error is None:
                by_place = dict(zip(running, row.places, strict=True))
                places = tuple(by_place.get(place) for place in range(len(self.infos)))
                return RowResult(row.logits, places), errors
            errors |= self._failing(running, row, history, logits)

    def _info(self, place: int, processor: ProcessorLike) -> ProcessorInfo:
        """Admit a processor alone, to get its properties. If it is refused, it gets a name from the request."""
        try:
            slot = self._admit((place,), listed_ids(self._request.prompt_token_ids))
        except LogitportError as error:
            self._refused[place] = error
            named = processor if isinstance(processor, str) else getattr(processor, "__qualname__", type(processor))
            return ProcessorInfo(str(named).rpartition(".<locals>.")[2], reads_logits=False, is_program=False)
        slot.remove()
        return slot.infos[0]

    def _failing(
        self, places: tuple[int, ...], row: RowResult, history: Sequence[int], logits: NDArray[np.float32]
    ) -> dict[int, LogitportError]:
        """The errors of the processors that make a step of these places fail, one or more."""
        assert row.error is not None  # noqa: S101 - it has failed
        if row.failed_place is not None:
            return {places[row.failed_place]: row.error}
        # It failed at an id of the history, which no other processor changes: each fails alone as well.
        alone = {place: self._error_alone(place, history, logits) for place in places}
        found = {place: error for place, error in alone.items() if error is not None}
        return found or dict.fromkeys(places, row.error)

    def _error_alone(self, place: int, history: Sequence[int], logits: NDArray[np.float32]) -> LogitportError | None:
        prompt_length = len(self._request.prompt_token_ids)
        known = history[: max(prompt_length, len(history) - 1)]  # the last id comes in the step
        try:
            slot = self._admit((place,), known)
        except LogitportError as error:
            return error
        failure = slot.step(history, logits).error
        slot.remove()
        return failure

    def _admit(self, places: tuple[int, ...], history: Sequence[int]) -> _Slot:
        processors = [self._request.processors[place] for place in places]
        self._next_slot += 1
        return _Slot(self._batch, self._next_slot, replace(self._request, processors=processors), history)


# The number of a slot's twin is larger by this.
_TWIN = 1 << 20


class _Slot:
    """A request in a batch, admitted with this history.

    If a processor takes the rows of several requests, a twin, an equal request, has the row before it in each step:
    code that works only for one row, such as `logits * params.a`, then fails here as on a server.
    """

    def __init__(self, batch: Batch, number: int, request: Request, history: Sequence[int]) -> None:
        self._batch = batch
        self._known = len(history)
        output = tuple(history[len(request.prompt_token_ids) :])
        admitted = replace(request, output_token_ids=output)
        self.infos = batch.add(number, admitted)
        self._numbers = [number]
        if any(info.takes_rows for info in self.infos):
            batch.add(number + _TWIN, admitted)
            self._numbers.insert(0, number + _TWIN)

    def step(self, history: Sequence[int], logits: NDArray[np.float32]) -> RowResult:
        rows = [RowStep(number, self._known, tuple(history[self._known :])) for number in self._numbers]
        self._known = len(history)
        return self._batch.step(rows, np.stack([logits] * len(rows)))[-1]

    def remove(self) -> None:
        """Remove the request."""
        for number in self._numbers:
            self._batch.remove(number)
