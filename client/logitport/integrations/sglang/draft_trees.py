"""Reads the trees of draft tokens that SGLang verifies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class DraftTree:
    """The drafts of one request.

    Attributes:
        nodes: the nodes of SGLang's tree that the root leads to, ascending. Node 0 is the root, the last sampled id.
        drafts: the ids of these nodes without the root.
        parents: for each draft, the index in `drafts` of the draft before it; -1 after the root.
    """

    nodes: Sequence[int] = (0,)
    drafts: Sequence[int] = ()
    parents: Sequence[int] = ()

    @property
    def is_chain(self) -> bool:
        """Whether each draft follows the one before it."""
        return all(parent == draft - 1 for draft, parent in enumerate(self.parents))


NO_DRAFTS = DraftTree()


def read_trees(verify_input: Any) -> list[DraftTree]:
    """Return the tree of each request.

    Args:
        verify_input: SGLang's `EagleVerifyInput` or `NgramVerifyInput`: of n nodes for each request, `draft_token`,
            int[requests * n], and the links `retrieve_next_token` (the first child) and `retrieve_next_sibling` (the
            next child of the same node), int[requests, n], with -1 for none. Parents precede their children.
    """
    import torch

    next_token = verify_input.retrieve_next_token
    columns = (verify_input.draft_token.view_as(next_token), next_token, verify_input.retrieve_next_sibling)
    of_requests = torch.stack([column.long() for column in columns], dim=1).tolist()
    return [_read(*of_request) for of_request in of_requests]


def read_blocks(verify_input: Any) -> list[DraftTree]:
    """Return the drafts of each request in a block that SGLang verifies, which are a chain.

    Args:
        verify_input: SGLang's `DFlashVerifyInput`: `draft_token`, int[requests * n], with the last sampled id first in
            each n = `draft_token_num`. With a `ragged_verify_layout`, only `verify_lens`, int[requests], of each
            request are verified; their ids follow each other without gaps, with padding at the end.
    """
    ids, nodes = verify_input.draft_token.tolist(), verify_input.draft_token_num
    layout = verify_input.ragged_verify_layout
    lengths = [nodes] * (len(ids) // nodes) if layout is None else layout.verify_lens.tolist()
    begins = itertools.accumulate(lengths, initial=0)
    return [
        DraftTree(range(length), ids[begin + 1 : begin + length], range(-1, length - 2))
        for begin, length in zip(begins, lengths, strict=False)
    ]


def _read(token_ids: list[int], children: list[int], siblings: list[int]) -> DraftTree:
    parents = {0: -1}
    for node in range(len(token_ids)):
        child = children[node] if node in parents else -1
        while child >= 0:
            parents[child] = node
            child = siblings[child]
    nodes = sorted(parents)
    index = {node: position for position, node in enumerate(nodes)}
    return DraftTree(nodes, [token_ids[node] for node in nodes[1:]], [index[parents[node]] - 1 for node in nodes[1:]])
