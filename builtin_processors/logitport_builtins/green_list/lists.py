"""The green list that follows each id: a pseudo-random part of the vocabulary."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

KEYS = ("greenlist_ratio", "bias", "hashing_key", "vocab_size")
_MAX_BIAS = 100.0
# Of 1024 lists, as bits: 19 MB for 151,936 ids. A list as ids would need twenty times the memory.
_CACHED = 1024


class GreenLists(NamedTuple):
    """The green lists of one watermark.

    The list after an id is the begin of the permutation that torch's CPU generator makes from the seed
    `hashing_key * id`, as in transformers 5.23 with the seeding scheme "lefthash".

    Attributes:
        vocab_size: number of ids that are divided.
        ratio: the green part of them.
        hashing_key: the secret key.
    """

    vocab_size: int
    ratio: float
    hashing_key: int

    @property
    def size(self) -> int:
        """Number of ids in each list."""
        return int(self.vocab_size * self.ratio)

    def after(self, token_id: int) -> NDArray[np.bool_]:
        """Whether each id is green after `token_id`, bool[vocab_size]."""
        return np.unpackbits(_bits(self, token_id), count=self.vocab_size).view(np.bool_)


def read(params: Mapping[str, Any]) -> tuple[GreenLists, float]:
    """Read the watermark and the bias from the parameters of a request; without `vocab_size`, it is 0.

    Raises:
        InvalidArgument: the parameters cannot be used.
    """
    given = Params("green_list", params, KEYS)
    ratio = given.number("greenlist_ratio", 0, 1) if "greenlist_ratio" in given else 0.25
    if not 0 < ratio < 1:
        raise given.error(f"greenlist_ratio must lie between 0 and 1, not {ratio!r}")
    key = given.integer("hashing_key", minimum=0) if "hashing_key" in given else 15_485_863
    vocab_size = given.integer("vocab_size", minimum=1) if "vocab_size" in given else 0
    bias = given.number("bias", -_MAX_BIAS, _MAX_BIAS) if "bias" in given else 2.0
    return GreenLists(vocab_size, ratio, key), bias


@lru_cache(maxsize=_CACHED)
def _bits(lists: GreenLists, token_id: int) -> NDArray[np.uint8]:
    """The first ids of the permutation that `torch.randperm` makes with the CPU's generator (torch 2.13).

    That is the shuffle of Fisher and Yates: step i swaps the elements at i and at `target[i]`. All steps are computed
    at once, because one after the other they take ten times as long.
    """
    size, seed = lists.size, lists.hashing_key * token_id % (2**64 - 1)
    steps = np.arange(min(size, lists.vocab_size - 1), dtype=np.uint32)
    drawn = np.random.RandomState(seed & 0xFFFFFFFF).randint(1 << 32, size=len(steps), dtype=np.uint32)
    target = steps + drawn % (np.uint32(lists.vocab_size) - steps)
    swaps = target != steps
    last = np.full(lists.vocab_size, -1)
    last[target[swaps]] = steps[swaps]  # the last step that moves an element to each index
    # Step i moves the element that an earlier step has moved to i, if one has; that step did the same.
    moved = np.where(last[steps] < 0, steps, last[steps])
    while not np.array_equal(moved, earlier := moved[moved]):
        moved = earlier
    left = size + np.flatnonzero(last[size:] >= 0)  # these ids are swapped into the list
    green = np.zeros(lists.vocab_size, np.bool_)
    green[:size] = green[left] = True
    green[moved[last[left]]] = False
    return np.packbits(green)
