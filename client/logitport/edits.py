"""Edits: the result of a logits-free processor, and their packed form.

The public names of `logitport.core.edits` and `logitport.core.row_edits`.
"""

from logitport.core.edits import Edits
from logitport.core.row_edits import EditKind, RowEdits, bitmask_words, pack_bits, unpack_bits

__all__ = ["EditKind", "Edits", "RowEdits", "bitmask_words", "pack_bits", "unpack_bits"]
