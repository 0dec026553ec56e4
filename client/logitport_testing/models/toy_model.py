"""A model without weights. Its logits depend on a seed and the last tokens alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Constants of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
_GAMMA, _MIX_1, _MIX_2 = (
    np.uint64(constant) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_CONTEXT = 2


class ToyModel:
    """Logits with the spread of a language model's, the same on every machine and with every version of numpy.

    Args:
        vocab_size: width of the logits.
        seed: another seed gives other logits.
        sharpness: factor of the logits; 0 makes all ids equally probable.

    Raises:
        InvalidArgument: vocab_size is not positive.
    """

    def __init__(self, vocab_size: int = 64, seed: int = 0, sharpness: float = 3.0) -> None:
        if vocab_size < 1:
            raise InvalidArgument(f"vocab_size is {vocab_size}; pass the width of the logits, 1 or more")
        self.vocab_size = vocab_size
        self.seed = seed
        self.sharpness = sharpness

    def __call__(self, token_ids: Sequence[int] | NDArray[np.int32]) -> NDArray[np.float32]:
        """The logits after these ids, float32[vocab_size]. They depend on the last two ids."""
        state = np.full(1, self.seed % (1 << 64), np.uint64)
        for token_id in list(token_ids)[-_CONTEXT:]:
            state = _mixed(state + np.uint64(int(token_id) + 1))
        numbers = _mixed(state + np.arange(1, self.vocab_size + 1, dtype=np.uint64) * _GAMMA)
        # Rounded to 20 bits, so that the last bit of a platform's logarithm does not show in float32.
        uniform = ((numbers >> np.uint64(44)).astype(np.float64) + 0.5) / (1 << 20)
        gumbel = -np.log(-np.log(uniform))
        return (self.sharpness * np.round(gumbel, 4)).astype(np.float32)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
