"""The ranks of tensor parallelism: each samples the same logits, so one asks the service and tells the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")


class Ranks:
    """The processes that sample the same rows.

    Args:
        group: the `GroupCoordinator` of them, which vLLM and SGLang have alike; None where there is one process.

    Attributes:
        leads: whether this process is the one that asks.
        alone: whether there is no other.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.alone = group is None or group.world_size == 1
        self.leads = self.alone or group.rank_in_group == 0

    def share(self, value: _T | None) -> _T:
        """The leader's value."""
        if not self.alone:
            value = self._group.broadcast_object(value, src=0)
        assert value is not None  # noqa: S101 - the leader has one
        return value

    def share_rows(self, rows: torch.Tensor) -> None:
        """Write the leader's rows, float[rows, vocab_size], into everybody's."""
        if self.alone:
            return
        shared = self._group.broadcast(rows.contiguous(), src=0)
        if shared.data_ptr() != rows.data_ptr():
            rows.copy_(shared)
