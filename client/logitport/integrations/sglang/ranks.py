"""Tensor parallelism: every rank samples the same logits, so one asks the service and the others do as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_T = TypeVar("_T")


class Ranks:
    """The ranks that sample one batch together.

    Args:
        group: SGLang's `GroupCoordinator` of these ranks; None for a rank alone.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group if group is not None and group.world_size > 1 else None

    @classmethod
    def here(cls) -> Ranks:
        """The ranks that sample with this process. With attention data parallelism they are fewer than all."""
        from sglang.srt.runtime_context import get_parallel

        return cls(get_parallel().attn_tp_group)

    def shared(self, ask: Callable[[], _T]) -> _T:
        """What `ask` returns on the first rank; it is called there alone, and must not raise."""
        if self._group is None:
            return ask()
        lead = self._group.rank_in_group == 0
        result: _T = self._group.broadcast_object(ask() if lead else None, src=0)
        return result

    def share_tensor(self, tensor: torch.Tensor) -> None:
        """Make the tensor on every rank what it is on the first one."""
        if self._group is not None:
            self._group.broadcast(tensor, src=0)
