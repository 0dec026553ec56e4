"""The rows of an engine that shows whole histories at every step, and the requests behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.request import ProcessorLike
    from logitport.session.frames import Handle
    from logitport.session.session import Session

    # A request's processors with their parameters, in the order in which they run.
    Chain = Sequence[tuple[ProcessorLike, Mapping[str, Any]]]


def is_chain(value: object) -> bool:
    """Whether this is a list of (processor, parameters) pairs."""
    return isinstance(value, list | tuple) and all(
        isinstance(holder, list | tuple) and len(holder) == 2 and isinstance(holder[1], Mapping) for holder in value
    )


class HistoryBatch:
    """One batch from its prompts to its last step, in a session of its own.

    Rows may change places, and histories may be cut back, from one step to the next: requests follow.

    Args:
        session: has no requests yet; closed by whoever opened it.
        prompts: int64[rows, prompt_length], padding included.

    Attributes:
        session: as given.
        prompt_length: as given.
    """

    def __init__(self, session: Session, prompts: NDArray[np.int64]) -> None:
        self.session = session
        self.prompt_length = prompts.shape[1]
        self._prompts = prompts.copy()
        self._length = self.prompt_length
        self._handles: list[Handle] = []
        self._siblings: list[list[int]] = []

    def admit(self, is_token: NDArray[np.bool_], chains: Sequence[Chain]) -> None:
        """Make each row's request. Raises as `Session.add`.

        Args:
            is_token: bool[rows, prompt_length], false for padding.
            chains: each row's processors.
        """
        siblings: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
        for row, (prompt, chain) in enumerate(zip(self._prompts, chains, strict=True)):
            ids = prompt[is_token[row]].tolist()
            self._handles.append(self.session.add(Request(ids, processors=chain, request_id=f"row {row}")))
            siblings[prompt.tobytes(), id(chain)].append(row)
        self._siblings = list(siblings.values())

    def continues_with(self, ids: NDArray[np.int64]) -> bool:
        """Whether int64[rows, length] can be the next step: the same prompts, and at most one id more than before."""
        return (
            len(ids) == len(self._prompts)
            and self.prompt_length < ids.shape[1] <= self._length + 1
            and np.array_equal(ids[:, : self.prompt_length], self._prompts)
        )

    def new_ids(self, ids: NDArray[np.int64], rows: Sequence[int]) -> dict[Handle, list[int]]:
        """What `Session.step` is to be told for these rows of int64[rows, length]. Cuts histories back that differ."""
        self._length = ids.shape[1]
        outputs = ids[:, self.prompt_length :]
        for siblings in self._siblings:
            self._reassign(siblings, outputs)
        new_ids = {}
        for row in rows:
            handle = self._handles[row]
            told = handle.history.output_token_ids
            common = _common_prefix(told, outputs[row])
            if common < len(told):
                self.session.rewind(handle, handle.history.prompt_length + common)
            new_ids[handle] = outputs[row, common:].tolist()
        return new_ids

    def _reassign(self, siblings: Sequence[int], outputs: NDArray[np.int64]) -> None:
        """Give each row of one prompt the request that shares most of its history: beams change places."""
        told = {row: self._handles[row].history.output_token_ids for row in siblings}
        if all(_common_prefix(told[row], outputs[row]) == len(told[row]) for row in siblings):
            return
        pairs = [(row, other) for row in siblings for other in siblings]
        pairs.sort(key=lambda pair: _common_prefix(told[pair[1]], outputs[pair[0]]), reverse=True)
        unassigned = set(siblings)
        handles = {row: self._handles[row] for row in siblings}
        for row, other in pairs:
            if row in unassigned and other in handles:
                unassigned.remove(row)
                self._handles[row] = handles.pop(other)


def _common_prefix(one: NDArray[Any], other: NDArray[Any]) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if different.size else length
