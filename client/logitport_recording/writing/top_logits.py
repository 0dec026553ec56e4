"""The best logits of rows, taken without a wait for the engine's device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core import tensors
from logitport.shipping.calls import unpack_int32
from logitport_proto.recording_pb2 import TopLogits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    Taken: TypeAlias = "_OnHost | _OnDevice"  # with `size_bytes`, the memory on the host


def take(logits: Any, rows: Sequence[int], top_k: int, before: Taken | None = None) -> Taken:
    """Take rows. This thread only copies them, or begins work on their GPU.

    Args:
        logits: float[rows, vocab_size], a torch tensor or a numpy array.
        rows: their indices.
        top_k: how many of the best logits to keep.
        before: the same rows before the chain.
    """
    top_k = min(top_k, logits.shape[1])
    if tensors.is_torch(logits) and logits.device.type != "cpu":
        return _OnDevice(logits, rows, top_k, before)
    return _OnHost(logits, rows, top_k, before)


class _OnHost:
    """Copies of whole rows: another thread searches them, because that takes longer than a copy."""

    def __init__(self, logits: Any, rows: Sequence[int], top_k: int, before: Taken | None) -> None:
        taken = logits[list(rows)]
        if tensors.is_torch(taken):
            taken = taken.detach().float().numpy()  # numpy has no bfloat16
        self._rows = taken
        self._top_k = top_k
        self._before = before
        self.size_bytes = int(taken.nbytes)

    def tops(self) -> list[TopLogits]:
        """The best logits of each row. After a chain, also the logits of the ids before it. May take long."""
        others = [np.empty(0, np.int32)] * len(self._rows)
        if self._before is not None:
            others = [unpack_int32(top.ids) for top in self._before.tops()]
        return [_top(row.astype(np.float32), self._top_k, ids) for row, ids in zip(self._rows, others, strict=True)]


class _OnDevice:
    """The result of operations that are queued on the stream of the logits. Another thread waits for them."""

    def __init__(self, logits: Any, rows: Sequence[int], top_k: int, before: Taken | None) -> None:
        import torch

        selected = logits.detach()[tensors.row_index(rows, logits)].float()
        self._logits, self._ids = torch.topk(selected, top_k)
        self._log_sums = torch.logsumexp(selected, 1)
        self._others: tuple[Any, Any] | None = None
        if isinstance(before, _OnDevice):
            self._others = before._ids, selected.gather(1, before._ids)
        self._queued = torch.cuda.Event() if logits.is_cuda else None  # type: ignore[no-untyped-call]
        if self._queued is not None:
            self._queued.record(torch.cuda.current_stream(logits.device))
        self.size_bytes = 16 * len(rows) * top_k

    def tops(self) -> list[TopLogits]:
        """As `_OnHost.tops`."""
        if self._queued is not None:
            self._queued.synchronize()
        pairs = [(self._ids, self._logits), *([self._others] if self._others is not None else [])]
        ids = np.concatenate([ids.cpu().numpy().astype(np.int32) for ids, _ in pairs], 1)
        logits = np.concatenate([logits.cpu().numpy() for _, logits in pairs], 1)
        sums = self._log_sums.cpu().tolist()
        return [_ordered(*np.unique(ids[row], return_index=True), logits[row], sums[row]) for row in range(len(ids))]


def _top(row: NDArray[np.float32], top_k: int, others: NDArray[np.int32]) -> TopLogits:
    best = np.argpartition(-row, top_k - 1)[:top_k] if top_k < len(row) else np.arange(len(row))
    ids = np.unique(np.concatenate([best, others]))
    return _ordered(ids, ids, row, log_sum(row))


def _ordered(ids: NDArray[Any], indices: NDArray[Any], logits: NDArray[np.float32], total: float) -> TopLogits:
    """Order ids by their logits, which are at these indices."""
    found = logits[indices]
    order = np.argsort(-found, kind="stable")
    return TopLogits(
        ids=ids[order].astype("<i4").tobytes(), logits=found[order].astype("<f4").tobytes(), log_sum=float(total)
    )


def log_sum(row: NDArray[np.floating[Any]]) -> float:
    """The logarithm of the sum of exp(logit)."""
    highest = float(row.max(initial=-np.inf))
    if not np.isfinite(highest):
        return highest
    return highest + float(np.log(np.exp(row.astype(np.float64) - highest).sum()))
