"""The stand-ins for SGLang's kernels, against brute force."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from tests.engines.sglang.brute_force_trees import Tree, random_tree
from tests.engines.sglang.kernels.sgl_kernel import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from tests.engines.sglang.kernels.sgl_kernel.attention import tree_attention
from tests.engines.sglang.kernels.sgl_kernel.trees import (
    build_tree_kernel_efficient_cpu,
    reconstruct_indices_from_tree_mask,
    verify_tree_greedy_cpu,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NODES = 7


def trees(seed: int, requests: int = 3) -> list[Tree]:
    source = random.Random(seed)
    return [random_tree(source, NODES) for _ in range(requests)]


def links_of(several: Sequence[Tree]) -> list[list[list[int]]]:
    return [[tree.next_token() for tree in several], [tree.next_sibling() for tree in several]]


def depths(tree: Tree, length: int) -> list[int]:
    return [length + len(tree.path(node)) - 1 for node in range(NODES)]


def empty(requests: int) -> list[torch.Tensor]:
    """Return positions, indices of nodes, first children and siblings, not yet written."""
    shapes = [(requests * NODES,), *[(requests, NODES)] * 3]
    return [torch.full(shape, 77, dtype=torch.long) for shape in shapes]


@pytest.mark.parametrize("seed", range(30))
def test_links_of_a_mask(seed: int) -> None:
    several, lengths = trees(seed), [5, 1, 9]
    mask = torch.tensor([tree.mask() for tree in several]).flatten()
    positions, indices, children, siblings = written = empty(len(several))
    reconstruct_indices_from_tree_mask(mask, torch.tensor(lengths), *written, len(several), NODES)
    assert positions.view(3, -1).tolist() == list(map(depths, several, lengths))
    assert indices.flatten().tolist() == list(range(3 * NODES))
    assert [children.tolist(), siblings.tolist()] == links_of(several)


def select(source: random.Random, topk: int, steps: int) -> tuple[list[int], list[int], Tree]:
    """Return what a draft model selects, as EAGLE's: the candidate that each group follows, candidates, their tree.

    The first step has one group of `topk` candidates, each later one a group for each of the best `topk` candidates
    of the step before. A selected candidate's ancestors are selected.
    """
    parents = [-1]
    for step in range(1, steps):
        begin = 0 if step == 1 else topk + (step - 2) * topk * topk
        candidates = range(begin, topk + (step - 1) * topk * topk)
        parents += sorted(source.sample(candidates, topk))
    chosen: list[int] = []
    while len(chosen) < NODES - 1:
        reachable = [c for c in range(topk * len(parents)) if c not in chosen and parents[c // topk] in [-1, *chosen]]
        chosen.append(source.choice(reachable))
    chosen.sort()
    nodes = [0 if c // topk == 0 else 1 + chosen.index(parents[c // topk]) for c in chosen]
    return parents, chosen, Tree([-1, *nodes])


@pytest.mark.parametrize("full_mask", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_trees_of_a_draft_model(seed: int, full_mask: bool) -> None:
    source = random.Random(seed)
    topk, steps = source.choice([(1, 7), (2, 4), (3, 4)])
    selections = [select(source, topk, steps) for _ in range(2)]
    several, lengths = [tree for *_, tree in selections], [4, 2]
    positions, indices, children, siblings = empty(2)
    columns = [NODES + (length if full_mask else 0) for length in lengths]
    mask = torch.ones(NODES * sum(columns), dtype=torch.bool)
    build_tree_kernel_efficient_cpu(
        torch.tensor([parents for parents, *_ in selections]),
        torch.tensor([chosen for _, chosen, _ in selections]),
        torch.tensor(lengths),
        *(mask, positions, indices, children, siblings, topk, steps, NODES, 0 if full_mask else 1),
    )
    assert positions.view(2, -1).tolist() == list(map(depths, several, lengths))
    assert [children.tolist(), siblings.tolist()] == links_of(several)
    for tree, part, length in zip(several, mask.split([NODES * each for each in columns]), lengths, strict=True):
        history = [True] * length if full_mask else []
        assert part.view(NODES, -1).tolist() == [history + row for row in tree.mask()]


@pytest.mark.parametrize("seed", range(30))
def test_greedy_verification(seed: int) -> None:
    """Few ids, so that drafts are often right."""
    several, source = trees(seed), random.Random(seed)
    drafts = [[source.randrange(3) for _ in range(NODES)] for _ in several]
    predicted = [[source.randrange(3) for _ in range(NODES)] for _ in several]
    predicts = torch.zeros(len(several) * NODES, dtype=torch.int32)
    accepted = torch.full((len(several), NODES), -1, dtype=torch.int32)
    counts = torch.empty(len(several), dtype=torch.int32)
    children, siblings = map(torch.tensor, links_of(several))
    indices = torch.arange(len(several) * NODES).view(len(several), -1)
    verify_tree_greedy_cpu(
        predicts, accepted, counts, torch.tensor(drafts), indices, children, siblings, torch.tensor(predicted)
    )
    for request, tree in enumerate(several):
        path = [0]
        while right := [n for n in tree.children(path[-1]) if drafts[request][n] == predicted[request][path[-1]]]:
            path.append(right[0])
        assert counts[request] == len(path) - 1
        assert accepted[request].tolist() == [request * NODES + n for n in path] + [-1] * (NODES - len(path))
        assert [int(predicts[request * NODES + n]) for n in path] == [predicted[request][n] for n in path]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_to_ancestors(kv_heads: int) -> None:
    torch.manual_seed(0)
    [tree] = trees(3, requests=1)
    query, keys, values = torch.randn(NODES, 4, 8), torch.randn(40, kv_heads, 8), torch.randn(40, kv_heads, 8)
    slots = torch.randperm(40)[: 5 + NODES]
    attended = tree_attention(query, keys, values, slots, torch.tensor(tree.mask()), 0.3)
    for node in range(NODES):
        seen = slots[[*range(5), *(5 + ancestor for ancestor in tree.path(node))]]
        for head in range(4):
            kv_head = head * kv_heads // 4
            weights = (keys[seen, kv_head] @ query[node, head] * 0.3).softmax(0)
            torch.testing.assert_close(attended[node, head], weights @ values[seen, kv_head])


def test_slots() -> None:
    """Slot 10 * row + position."""
    table = (torch.arange(4).unsqueeze(1) * 10 + torch.arange(8)).int()
    rows, starts, ends = torch.tensor([2, 0]), torch.tensor([3, 1]), torch.tensor([5, 4])
    slots = torch.full((7,), -1)
    assign_extend_cache_locs_cpu(rows, table, starts, ends, slots, 8)
    assert slots.tolist() == [23, 24, 1, 2, 3, -1, -1]
    written = torch.zeros_like(table)
    assign_req_to_token_pool_cpu(rows, written, starts, ends, slots, 8)
    assert written.nonzero().tolist() == [[0, 1], [0, 2], [0, 3], [2, 3], [2, 4]]
    assert torch.equal(written[written > 0], table[written > 0])
    contiguous = torch.empty(4, dtype=torch.long)
    assign_draft_cache_locs_contiguous_cpu(rows, table, starts, contiguous, 8, 1, 2)
    assert contiguous.tolist() == [23, 24, 1, 2]


def test_accepted_nodes() -> None:
    accepted = torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32)
    slots = torch.full((6,), -1)
    fill_accept_out_cache_loc_cpu(accepted, torch.arange(20, 26), slots)
    assert slots.tolist() == [20, 22, 23, -1, -1, -1]
    bonus = torch.empty(2, dtype=torch.int32)
    fill_bonus_tokens_cpu(torch.tensor([[7, 8, 0], [9, 0, 0]], dtype=torch.int32), torch.tensor([2, 1]), bonus, 3)
    assert bonus.tolist() == [8, 9]


def test_moved_slots() -> None:
    buffers = [torch.arange(12.0).view(4, 3), torch.arange(8).view(4, 2)]
    expected = [buffer[[1, 2, 2, 3]] for buffer in buffers]
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer[0].nbytes for buffer in buffers])
    copy_all_layer_kv_cache_cpu(pointers, strides, torch.tensor([0, 1]), torch.tensor([1, 2]))
    assert all(map(torch.equal, buffers, expected))
