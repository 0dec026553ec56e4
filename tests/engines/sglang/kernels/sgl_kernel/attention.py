"""Attention over trees of drafts, which SGLang's backend "torch_native" lacks."""

from __future__ import annotations

import functools
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

_BACKEND = "sglang.srt.layers.attention.torch_native_backend"


def tree_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    tree_mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return the attention of one request's nodes to its history and to their ancestors.

    Args:
        query: float[nodes, heads, head_size].
        keys: float[pool, kv_heads, head_size].
        values: float[pool, kv_heads, value_size].
        slots: int[positions + nodes], where the keys and values of the history and of the nodes are.
        tree_mask: bool[nodes, nodes]; whether the second node is an ancestor of the first, or the same.
        scale: factor of the products.

    Returns:
        float[nodes, heads, value_size].
    """
    history = torch.ones(len(query), len(slots) - len(query), dtype=torch.bool)
    attended = scaled_dot_product_attention(
        query.movedim(0, 1).unsqueeze(0),
        keys[slots].movedim(0, 1).unsqueeze(0),
        values[slots].movedim(0, 1).unsqueeze(0),
        attn_mask=torch.cat([history, tree_mask], dim=1),
        scale=scale,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
    return attended.squeeze(0).movedim(0, 1)


def extend_torch_native() -> None:
    """Let SGLang's backend verify drafts, once it is imported."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        if fullname != _BACKEND:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            backend = module.TorchNativeAttnBackend
            backend.forward_extend = _wrap(backend.forward_extend, module.KVWriteLoc)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _wrap(extend: Any, write_location: Any) -> Any:
    @functools.wraps(extend)
    def forward_extend(
        self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> torch.Tensor:
        """Verify drafts, [nodes, heads * value_size]; leave prompts to SGLang."""
        if not forward_batch.forward_mode.is_target_verify():
            return extend(self, q, k, v, layer, forward_batch, save_kv_cache)  # type: ignore[no-any-return]
        if save_kv_cache:
            self.token_to_kv_pool.set_kv_buffer(layer, write_location(forward_batch.out_cache_loc, None), k, v)
        nodes, requests = forward_batch.spec_info.draft_token_num, len(forward_batch.seq_lens)
        masks = forward_batch.spec_info.custom_mask.view(requests, nodes, nodes)
        queries = q.view(requests, nodes, layer.tp_q_head_num, layer.qk_head_dim)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        rows = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices]
        return torch.cat(
            [
                tree_attention(query, keys, values, row[: length + nodes].long(), mask, layer.scaling).flatten(1)
                for query, row, length, mask in zip(queries, rows, forward_batch.seq_lens.tolist(), masks, strict=True)
            ]
        )

    return forward_extend
