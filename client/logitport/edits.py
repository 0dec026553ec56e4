"""Edits: what a logits-free processor returns, and how they are packed.

The public module of `logitport.core.edits` and `logitport.core.row_edits`.
"""

from logitport.core.edits import Edits
from logitport.core.row_edits import EditKind, RowEdits, bitmask_words, pack_bits, unpack_bits

__all__ = ["EditKind", "Edits", "RowEdits", "bitmask_words", "pack_bits", "unpack_bits"]
