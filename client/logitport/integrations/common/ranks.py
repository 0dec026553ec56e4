"""Tensor-parallel ranks: all sample the same logits, so one calls the service and shares the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")


class Ranks:
    """The processes that sample the same rows.

    Args:
        group: their `GroupCoordinator`, which vLLM and SGLang both have; None for a single process.

    Attributes:
        is_leader: whether this process calls the service.
        is_single: whether it is the only process.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.is_single = group is None or group.world_size == 1
        self.is_leader = self.is_single or group.rank_in_group == 0

    def share(self, value: _T | None) -> _T:
        """Return the leader's value on every rank."""
        if not self.is_single:
            value = self._group.broadcast_object(value, src=0)
        assert value is not None  # noqa: S101 - the leader passes one
        return value

    def share_rows(self, rows: torch.Tensor) -> None:
        """Overwrite the rows, float[rows, vocab_size], with the leader's, in place."""
        if self.is_single:
            return
        shared = self._group.broadcast(rows.contiguous(), src=0)
        if shared.data_ptr() != rows.data_ptr():
            rows.copy_(shared)
