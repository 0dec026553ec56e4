"""Stub of vLLM's module of this name, with the function that third-party processors use."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .interface import BatchUpdate, MoveDirectionality

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....sampling_params import SamplingParams

_StateT = TypeVar("_StateT")


def process_dict_updates(
    req_entries: dict[int, _StateT],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], _StateT | None],
) -> bool:
    """Update a dict of states by index in the batch. Requests without state have no entry.

    Args:
        req_entries: the dict.
        batch_update: the changes of the batch; None if there are none.
        new_state: creates a state from the sampling parameters, prompt and output of a new request; None if it needs
            none.

    Returns:
        Whether the dict was changed.
    """
    if batch_update is None:
        return False
    changed = False
    for index in batch_update.removed:
        changed |= req_entries.pop(index, None) is not None
    for index, params, prompt_ids, output_ids in batch_update.added:
        changed |= req_entries.pop(index, None) is not None
        state = new_state(params, prompt_ids, output_ids)
        if state is not None:
            req_entries[index] = state
            changed = True
    for source, target, direction in batch_update.moved:
        moved, replaced = req_entries.pop(source, None), req_entries.pop(target, None)
        changed |= moved is not None or replaced is not None
        if moved is not None:
            req_entries[target] = moved
        if replaced is not None and direction == MoveDirectionality.SWAP:
            req_entries[source] = replaced
    return changed
