"""The kernel that SGLang's NGRAM worker imports from this module."""

from __future__ import annotations

from .trees import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]
