"""vLLM's request slots: a request keeps one while it is active, and its rows of a call are in order of draft offset."""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from logitport_session.stubs.vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from logitport.core.history import History


class Seat:
    """A request's ownership of a slot. The slot is free again when the last reference to the seat is dropped.

    Attributes:
        slots: the slots that this one belongs to.
        slot: the slot's number.
        history: the request's history, live.
        written: number of the history's ids in the buffers.
    """

    __slots__ = ("__weakref__", "_free", "history", "slot", "slots", "written")

    def __init__(self, slots: RequestSlots, slot: int, history: History) -> None:
        self.slots = slots
        self.slot = slot
        self.history = history
        self.written = 0
        self._free = weakref.finalize(self, slots.give_back, slot)
        self._free.atexit = False

    def leave(self) -> None:
        """Free the slot at once, for a request that the processor has not accepted."""
        self._free()


class RequestSlots:
    """A free list of slots, and the buffers of the revised model runner that are indexed by slot.

    Source: `RequestState` in vllm/v1/worker/gpu/states.py, vLLM 0.33.

    Attributes:
        device: device of the buffers.
        count: number of slots.
        longest: capacity of a slot, in ids.
        all_token_ids, prompt_len, prefill_len, total_len: as in `LogitsProcRequestState`.
    """

    def __init__(self, count: int, longest: int, device: torch.device) -> None:
        self.device = device
        self.count = count
        self.longest = longest
        self._free = list(range(count))[::-1]
        self.all_token_ids = StagedWriteTensor((count, longest), torch.int32, device)
        self.prompt_len = UvaBackedTensor(count, torch.int32, device=device)
        self.prefill_len = UvaBackedTensor(count, torch.int32, device=device)
        self.total_len = StagedWriteTensor(count, torch.int32, device)

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        self._free.append(slot)

    def seat(self, history: History) -> Seat:
        """Give a request a free slot, and write its history to the buffers. Raises IndexError if none is free."""
        seat = Seat(self, self._free.pop(), history)
        length, slot = len(history), seat.slot
        self.prompt_len.np[slot] = history.prompt_length
        self.prefill_len.np[slot] = length
        self.all_token_ids.gpu[slot, :length] = torch.from_numpy(history.token_ids).to(self.device)
        seat.written = length
        return seat

    def flush(self, seats: Sequence[Seat]) -> None:
        """Write the ids that were appended to these histories to the buffers, and update the device's copies."""
        rows: list[int] = []
        columns: list[int] = []
        token_ids: list[int] = []
        for seat in seats:
            history = seat.history
            for at in range(seat.written, history.length):
                rows.append(seat.slot)
                columns.append(at)
                token_ids.append(history.at(at))
            seat.written = history.length
        slots, lengths = [seat.slot for seat in seats], [seat.written for seat in seats]
        if rows:
            self.all_token_ids.gpu[self._on_device(rows), self._on_device(columns)] = self._on_device(
                token_ids, np.int32
            )
        self.total_len.gpu[self._on_device(slots)] = self._on_device(lengths, np.int32)
        self.prompt_len.copy_to_uva()
        self.prefill_len.copy_to_uva()

    def _on_device(self, values: list[int], dtype: type[np.signedinteger[Any]] = np.int64) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype)).to(self.device)


@dataclass(slots=True)
class Arrangement:
    """Requests, and the indices in the call of their rows.

    Each entry of a request has a chain of drafts: a request with a tree of drafts is listed once for each path to a
    leaf, and a request with the same row twice is listed twice.

    Attributes:
        requests: states of the requests.
        drafts: the draft tokens of each request, one fewer than it has rows.
        indices: for each row, by request, its index in the call. If the call, or the entry, lacks a row after so many
            drafts, the index of another row of the request fills the gap.
        missing: rows that fill such a gap; their results are discarded.
    """

    requests: Sequence[Any]
    drafts: Sequence[Sequence[int]]
    indices: Sequence[int]
    missing: Container[int] = ()


def arrange(states: Sequence[Any], drafts: Sequence[Sequence[int]], excluded: Container[Any] = ()) -> Arrangement:
    """Order the rows of a call.

    Args:
        states: the state of each row.
        drafts: the draft tokens before each row; () if no row has any.
        excluded: states; their rows are skipped.
    """
    if not drafts:
        indices = [index for index, state in enumerate(states) if state not in excluded]
        return Arrangement([states[index] for index in indices], [()] * len(indices), indices)
    spans = _spans(states, drafts, excluded)
    arranged: list[int] = []
    missing: set[int] = set()
    for span in spans:
        substitute = next(index for index in span.indices if index is not None)
        for index in span.indices:
            if index is None:
                missing.add(len(arranged))
            arranged.append(substitute if index is None else index)
    return Arrangement([span.state for span in spans], [span.drafts for span in spans], arranged, missing)


@dataclass(slots=True)
class _Span:
    """Rows of one request along a chain of drafts, by the number of drafts before them; None for a missing row."""

    state: Any
    indices: list[int | None] = field(default_factory=list)
    drafts: Sequence[int] = ()

    def has_room(self, drafts: Sequence[int]) -> bool:
        """Whether a row after these drafts belongs to the chain, and is not here yet."""
        depth = len(drafts)
        if depth < len(self.indices) and self.indices[depth] is not None:
            return False
        return list(self.drafts[:depth]) == list(drafts[: len(self.drafts)])


def _spans(states: Sequence[Any], drafts: Sequence[Sequence[int]], excluded: Container[Any]) -> list[_Span]:
    spans: list[_Span] = []
    of_state: defaultdict[Any, list[_Span]] = defaultdict(list)
    for index, (state, before) in enumerate(zip(states, drafts, strict=True)):
        if state in excluded:
            continue
        span = next((span for span in of_state[state] if span.has_room(before)), None)
        if span is None:
            span = _Span(state)
            of_state[state].append(span)
            spans.append(span)
        depth = len(before)
        if depth >= len(span.indices):
            span.indices += [None] * (depth + 1 - len(span.indices))
            span.drafts = before
        span.indices[depth] = index
    return spans
