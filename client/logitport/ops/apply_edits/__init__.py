"""Apply edits to logits, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.edits import EditKind, unpack_bits

if TYPE_CHECKING:
    from logitport.edits import Edits


def apply_edits(edits: Edits, logits: Any) -> None:
    """Apply `edits` to logits, float[rows, vocab_size], in place; rows without an edit stay bit-identical."""
    for edit in range(len(edits)):
        row = logits[int(edits.rows[edit])]
        ids = edits.ids[edits.offsets[edit] : edits.offsets[edit + 1]]
        kind = edits.kinds[edit]
        if kind == EditKind.DENY:
            row[ids] = -float("inf")
        elif kind == EditKind.FORCE:
            row[:] = -float("inf")
            row[ids] = 0.0
        elif kind == EditKind.BIAS:
            for token_id, value in zip(ids, edits.values[edits.offsets[edit] : edits.offsets[edit + 1]], strict=True):
                row[int(token_id)] += float(value)
        else:
            denied = np.ones(len(row), np.bool_)
            if kind == EditKind.ALLOW:
                denied[ids] = False
            else:
                denied = ~unpack_bits(ids, len(row))
            row[denied] = -float("inf")
