"""The operator that SGLang imports from vLLM on a CPU without its own kernels."""

from __future__ import annotations

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotate queries and keys, [tokens, heads * head_size], in place.

    Args:
        positions: int64[tokens].
        query: rotated.
        key: rotated, if there is one.
        head_size: size of a head.
        cos_sin_cache: [positions, rotary_size], cosines and then sines.
        is_neox: whether the halves of a pair are half a rotary_size apart; otherwise they are adjacent.
    """
    cosines, sines = cos_sin_cache[positions.flatten()].chunk(2, dim=-1)
    rotary_size = cos_sin_cache.shape[-1]
    for states in (query, key):
        if states is None:
            continue
        heads = states.view(len(cosines), -1, head_size)[..., :rotary_size]
        cosine, sine = (part.unsqueeze(1).to(heads.dtype) for part in (cosines, sines))
        if is_neox:
            first, second = heads.chunk(2, dim=-1)
            rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
        else:
            first, second = heads[..., ::2], heads[..., 1::2]
            rotated = torch.stack([first * cosine - second * sine, second * cosine + first * sine], dim=-1).flatten(-2)
        heads.copy_(rotated)
