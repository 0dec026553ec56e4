"""Builds, reads and verifies trees of drafts."""

from __future__ import annotations

import torch

_FULL_MASK, _QLEN_ONLY = 0, 1


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Write the links of trees that are given by their masks.

    Args:
        tree_mask: bool[requests * nodes * nodes]; whether the second node is an ancestor of the first, or the same.
        verified_seq_len: int64[requests], the position of the root.
        positions: int64[requests * nodes], out.
        retrieve_index: int64[requests, nodes], out: the index of a node in the batch.
        retrieve_next_token: int64[requests, nodes], out: the first child; -1 for none.
        retrieve_next_sibling: int64[requests, nodes], out: the next child of the same node; -1 for none.
        batch_size: number of requests.
        draft_token_num: nodes of a request.
    """
    ancestors = tree_mask.view(batch_size, draft_token_num, draft_token_num).tril(-1)
    nodes = torch.arange(draft_token_num)
    parents = torch.where(ancestors, nodes, -1).amax(-1)
    positions.view(batch_size, -1).copy_(ancestors.sum(-1) + verified_seq_len.unsqueeze(-1))
    retrieve_index.copy_(torch.arange(batch_size * draft_token_num).view(batch_size, -1))
    for request in range(batch_size):
        _link(parents[request].tolist(), retrieve_next_token[request], retrieve_next_sibling[request])


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    _depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Write the tree of the candidates that a draft model selected.

    Args:
        parent_list: int64[requests, parents]; the candidate that a group of `topk` candidates follows, from the second
            group on. The first group follows the root.
        selected_index: int64[requests, nodes - 1]; the candidate of each node but the root, ascending.
        verified_seq_len: int64[requests], the position of the root.
        tree_mask: bool, out; by request and node, with a column for each node, or for each position and then each node.
        positions: int64[requests * nodes], out.
        retrieve_index: int64[requests, nodes], out: the index of a node in the batch.
        retrieve_next_token: int64[requests, nodes], out: the first child; -1 for none.
        retrieve_next_sibling: int64[requests, nodes], out: the next child of the same node; -1 for none.
        topk: candidates of a group.
        draft_token_num: nodes of a request.
        tree_mask_mode: of SGLang's `TreeMaskMode`.
    """
    batch_size, begin = len(verified_seq_len), 0
    retrieve_index.copy_(torch.arange(batch_size * draft_token_num).view(batch_size, -1))
    for request, length in enumerate(verified_seq_len.tolist()):
        selected = selected_index[request].tolist()
        groups = [candidate // topk for candidate in selected]
        parents = [-1, *(1 + selected.index(int(parent_list[request, g])) if g else 0 for g in groups)]
        mask = torch.eye(draft_token_num, dtype=torch.bool)
        for node, parent in enumerate(parents[1:], 1):
            mask[node] |= mask[parent]
        positions[request * draft_token_num : (request + 1) * draft_token_num] = length + mask.sum(-1) - 1
        _link(parents, retrieve_next_token[request], retrieve_next_sibling[request])
        columns = draft_token_num + (length if tree_mask_mode == _FULL_MASK else 0)
        rows = tree_mask[begin : begin + draft_token_num * columns].view(draft_token_num, columns)
        rows[:, columns - draft_token_num :] = mask
        begin += rows.numel()


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accept the path of drafts that the model itself predicts.

    Args:
        predicts: int32[requests * nodes], out: the predicted id of each accepted node.
        accept_index: int32[requests, depth], out: the accepted nodes, the root first.
        accept_token_num: int32[requests], out: accepted drafts, without the root.
        candidates: int64[requests, nodes], drafts.
        retrive_index: int64[requests, nodes], the index of a node in the batch.
        retrive_next_token: int64[requests, nodes], the first child; -1 for none.
        retrive_next_sibling: int64[requests, nodes], the next child of the same node; -1 for none.
        target_predict: int64[requests, nodes], the id that the model predicts after each node.
    """
    depth = accept_index.shape[1]
    for request in range(len(candidates)):
        node, accepted = 0, 0
        while True:
            accept_index[request, accepted] = retrive_index[request, node]
            predicts[retrive_index[request, node]] = target_predict[request, node]
            child = int(retrive_next_token[request, node])
            while child >= 0 and candidates[request, child] != target_predict[request, node]:
                child = int(retrive_next_sibling[request, child])
            if child < 0 or accepted + 1 == depth:
                break
            node, accepted = child, accepted + 1
        accept_token_num[request] = accepted


def _link(parents: list[int], next_token: torch.Tensor, next_sibling: torch.Tensor) -> None:
    """Write a tree's links: int64[nodes] each."""
    next_token.fill_(-1)
    next_sibling.fill_(-1)
    latest: dict[int, int] = {}
    for node, parent in enumerate(parents):
        if parent < 0:
            continue
        if parent in latest:
            next_sibling[latest[parent]] = node
        else:
            next_token[parent] = node
        latest[parent] = node
