"""Maps the rows of an engine that passes whole histories at every step to requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument
from logitport.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from logitport.request import ProcessorLike
    from logitport.session.frames import Handle
    from logitport.session.session import Session

    # A request's processors with their parameters, in execution order.
    Chain = Sequence[tuple[ProcessorLike, Mapping[str, Any]]]


def is_chain(value: object) -> bool:
    """Return whether the value is a list of (processor, parameters) pairs."""
    return isinstance(value, list | tuple) and all(
        isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[1], Mapping) for entry in value
    )


def require_chain(value: Chain) -> Chain:
    """Return the value. Raises InvalidArgument if it is no list of (processor, parameters) pairs."""
    if is_chain(value):
        return value
    raise InvalidArgument(
        "processors: expected (processor, parameters) pairs, such as [('disallowed_tokens', {'token_ids': [1]})]"
    )


class HistoryBatch:
    """One batch, from its prompts to its last step, in its own session.

    Between steps, rows may change places and histories may be cut back: each row keeps a matching request.

    Args:
        session: has no requests yet; closed by `close`.
        prompts: int64[rows, prompt_length], padding included.

    Attributes:
        session: as given.
        prompt_length: width of `prompts`.
    """

    def __init__(self, session: Session, prompts: NDArray[np.int64]) -> None:
        self.session = session
        self.prompt_length = prompts.shape[1]
        self._prompts = prompts.copy()
        self._length = self.prompt_length
        self._handles: list[Handle] = []
        self._prompt_groups: list[list[int]] = []

    def admit(self, is_token: NDArray[np.bool_], chains: Sequence[Chain], tenants: Sequence[str]) -> None:
        """Add a request for each row. Raises as `Session.add`.

        Args:
            is_token: bool[rows, prompt_length], false for padding.
            chains: each row's processors.
            tenants: each row's tenant.
        """
        group: defaultdict[tuple[bytes, int, str], list[int]] = defaultdict(list)
        for row, (prompt, chain, tenant) in enumerate(zip(self._prompts, chains, tenants, strict=True)):
            ids = prompt[is_token[row]].tolist()
            request = Request(ids, processors=chain, request_id=f"row {row}", tenant=tenant)
            self._handles.append(self.session.add(request))
            group[prompt.tobytes(), id(chain), tenant].append(row)
        self._prompt_groups = list(group.values())

    def continues_with(self, ids: NDArray[np.int64]) -> bool:
        """Return whether int64[rows, length] can be the next step: same prompts, at most one id more than before."""
        return (
            len(ids) == len(self._prompts)
            and self.prompt_length < ids.shape[1] <= self._length + 1
            and np.array_equal(ids[:, : self.prompt_length], self._prompts)
        )

    def new_ids(self, ids: NDArray[np.int64], rows: Sequence[int]) -> dict[Handle, list[int]]:
        """Return the `Session.step` argument for these rows of int64[rows, length]. Rewinds histories that differ."""
        self._length = ids.shape[1]
        outputs = ids[:, self.prompt_length :]
        for group in self._prompt_groups:
            self._reassign(group, outputs)
        new_ids = {}
        for row in rows:
            handle = self._handles[row]
            known = handle.history.output_token_ids
            common = _common_prefix(known, outputs[row])
            if common < len(known):
                self.session.rewind(handle, handle.history.prompt_length + common)
            new_ids[handle] = outputs[row, common:].tolist()
        return new_ids

    def close(self) -> None:
        """Close the session."""
        self.session.close()

    def _reassign(self, group: Sequence[int], outputs: NDArray[np.int64]) -> None:
        """Give each row of one prompt the request that shares most of its history, since beams change places."""
        known = {row: self._handles[row].history.output_token_ids for row in group}
        if all(_common_prefix(known[row], outputs[row]) == len(known[row]) for row in group):
            return
        pairs = [(row, other) for row in group for other in group]
        pairs.sort(key=lambda pair: _common_prefix(known[pair[1]], outputs[pair[0]]), reverse=True)
        unassigned = set(group)
        handles = {row: self._handles[row] for row in group}
        for row, other in pairs:
            if row in unassigned and other in handles:
                unassigned.remove(row)
                self._handles[row] = handles.pop(other)


def _common_prefix(one: NDArray[Any], other: NDArray[Any]) -> int:
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if different.size else length
