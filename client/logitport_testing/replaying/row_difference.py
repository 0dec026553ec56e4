"""Effects of edits on a row, and the differences of two rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.core.edits import Edits
from logitport.ops import apply_edits
from logitport.shipping.calls import unpack_int32
from logitport_testing.step_records.step_record import ids_to_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport_proto import common_pb2
    from logitport_proto.recording_pb2 import RecordedRow, TopLogits


@dataclass(frozen=True, eq=False)
class RowDifference:
    """The difference between a new row and the recorded one.

    Attributes:
        denied: ids with -inf now, and another logit in the recording, int32[n].
        allowed: ids with -inf in the recording, and another logit now, int32[n].
        biased: ids with another finite logit, int32[n].
        bias: the new logit less the recorded one, of each of `biased`, float32[n].
        forced: the only id that is left now; None if there are more.
        was_forced: the only id that was left in the recording; None if there were more.
    """

    denied: NDArray[np.int32]
    allowed: NDArray[np.int32]
    biased: NDArray[np.int32]
    bias: NDArray[np.float32]
    forced: int | None
    was_forced: int | None

    def __bool__(self) -> bool:
        return bool(self.denied.size or self.allowed.size or self.biased.size)

    def to_json(self, max_ids: int | None = 100) -> dict[str, Any]:
        """Convert to JSON data. Lists of ids end after `max_ids`; their lengths are in `counts`."""
        lists = ids_to_json(self, ("denied", "allowed", "biased", "bias"), max_ids)
        return {**lists, "forced": self.forced, "was_forced": self.was_forced}


def effect_of(edits: common_pb2.Edits, vocab_size: int) -> NDArray[np.float32]:
    """Apply edits of a row to zeros: float32[vocab_size]. Raises InvalidArgument if they do not fit it."""
    effect: NDArray[np.float32] = np.zeros(vocab_size, np.float32)
    apply_edits(Edits.from_proto(edits, 1, vocab_size), effect[None])
    return effect


def difference(
    recorded: NDArray[np.float32],
    new: NDArray[np.float32],
    ids: NDArray[np.int32] | None = None,
    tolerance: float = 1e-5,
) -> RowDifference:
    """Compare two rows.

    Args:
        recorded: float32[n].
        new: float32[n].
        ids: the ids of their elements; None for 0 to n - 1.
        tolerance: how far two finite logits may differ, absolutely and relatively.
    """
    was_allowed, is_allowed = recorded > -np.inf, new > -np.inf
    names = np.arange(len(recorded), dtype=np.int32) if ids is None else ids
    with np.errstate(invalid="ignore"):  # -inf less -inf
        differ = ~np.isclose(recorded, new, rtol=tolerance, atol=tolerance, equal_nan=True)
        biased = was_allowed & is_allowed & differ
        bias = new[biased] - recorded[biased]
    whole = ids is None
    return RowDifference(
        names[was_allowed & ~is_allowed],
        names[~was_allowed & is_allowed],
        names[biased],
        bias,
        _only(names, is_allowed) if whole else None,
        _only(names, was_allowed) if whole else None,
    )


def row_of(top: TopLogits, vocab_size: int) -> NDArray[np.float32]:
    """Make a row, float32[vocab_size], of its best logits. The other ids share the rest of the probability evenly."""
    ids, logits = unpack_int32(top.ids), np.frombuffer(top.logits, "<f4")
    others = vocab_size - len(ids)
    row = np.full(vocab_size, -np.inf, np.float32)
    if others and np.isfinite(top.log_sum):
        with np.errstate(over="ignore"):  # a forged sum may be of any size
            known = np.exp(logits.astype(np.float64) - top.log_sum).sum()
            if known < 1.0 - 1e-7:
                row[:] = np.log(1.0 - known) + top.log_sum - np.log(others)
    row[ids] = logits
    return row


def known_ids(row: RecordedRow) -> NDArray[np.int32]:
    """Return the ids, ascending, with recorded logits in a row."""
    return np.unique(np.concatenate([unpack_int32(row.before.ids), unpack_int32(row.after.ids)]))


def best_of(row: NDArray[np.float32], ids: NDArray[np.int32], count: int) -> list[tuple[int, float]]:
    """The most probable of these ids of a row, with their probabilities in the whole row."""
    highest = row.max(initial=-np.inf)
    if not np.isfinite(highest):
        return []
    weights = np.exp(row.astype(np.float64) - highest)
    order = ids[np.argsort(-row[ids], kind="stable")[:count]]
    total = weights.sum()
    return [(int(token_id), float(weights[token_id] / total)) for token_id in order if weights[token_id] > 0]


def _only(ids: NDArray[np.int32], allowed: NDArray[np.bool_]) -> int | None:
    return int(ids[allowed][0]) if np.count_nonzero(allowed) == 1 else None
