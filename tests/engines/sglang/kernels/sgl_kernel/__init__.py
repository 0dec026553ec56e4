"""Stand-ins in plain PyTorch for the kernels that SGLang 0.5.23 needs to verify drafts on a CPU.

SGLang's own package of this name has no build for CPUs. The contracts are those of the Triton kernels in
`sglang.kernels.ops.speculative`. Arguments marked "out" are written in place. The import also extends
SGLang's attention.
"""

from __future__ import annotations

import ctypes

import torch

from .attention import extend_torch_native
from .trees import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
    topk: int,
    steps: int,
) -> None:
    """Copy the `topk * steps` slots that follow each request's sequence.

    Args:
        req_pool_indices: int64[requests], rows of the table.
        req_to_token: int32[pool, pool_len], the slot of each position.
        seq_lens: int64[requests].
        out_cache_loc: int64[requests * topk * steps], out.
        topk: branches of a draft.
        steps: draft steps.
    """
    length = topk * steps
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, seq_lens + length, out_cache_loc, _pool_len)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
) -> None:
    """Write the slots of positions start to end of each request, packed.

    Args:
        req_pool_indices: int64[requests], rows of the table.
        req_to_token: int32[pool, pool_len], the slot of each position.
        start_offset: int64[requests], the first position.
        end_offset: int64[requests], one after the last position.
        out_cache_loc: int64[positions], out; what lies behind the last position is left.
    """
    begin = 0
    for row, start, end in _ranges(req_pool_indices, start_offset, end_offset):
        out_cache_loc[begin : begin + end - start] = req_to_token[row, start:end]
        begin += end - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    _pool_len: int,
) -> None:
    """Write packed slots into the table: the inverse of `assign_extend_cache_locs_cpu`.

    Args:
        req_pool_indices: int64[requests], rows of the table.
        req_to_token: int32[pool, pool_len], out.
        start_offset: int64[requests], the first position.
        end_offset: int64[requests], one after the last position.
        out_cache_loc: int64[positions].
    """
    begin = 0
    for row, start, end in _ranges(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[begin : begin + end - start]
        begin += end - start


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy slots to other slots in each buffer, as if all were read before the first is written.

    Args:
        data_ptrs: uint64[buffers], addresses.
        strides: int64[buffers], bytes of a slot.
        tgt_loc: int64[slots], slots that are written.
        src_loc: int64[slots], slots that are read.
    """
    for address, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        copies = [ctypes.string_at(address + slot * size, size) for slot in src_loc.tolist()]
        for slot, copy in zip(tgt_loc.tolist(), copies, strict=True):
            ctypes.memmove(address + slot * size, copy, size)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Pack the slots of accepted nodes.

    Args:
        accept_index: int32[requests, depth], accepted nodes; -1 for none.
        out_cache_loc: int64[nodes], the slot of each node.
        accept_out_cache_loc: int64[requests * depth], out; what lies behind the accepted nodes is left.
    """
    accepted = accept_index.flatten()
    accepted = accepted[accepted >= 0].long()
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted]


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Write the last accepted id of each request.

    Args:
        accept_tokens: int32[requests * accept_stride], accepted ids.
        accept_lens: int32[requests], how many ids are accepted.
        bonus_tokens: int32[requests], out.
        accept_stride: ids of a request.
    """
    last = torch.arange(len(accept_lens)) * accept_stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last.long()])


def _ranges(rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> list[tuple[int, int, int]]:
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))


extend_torch_native()
