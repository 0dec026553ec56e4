"""An engine's batch: the processors of its rows, the histories, and the sampled ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kinds import BAN, FIRST_ORDINARY, NGRAM, START, THINKING, Kind

_SEED = 20260731
_WORDS = 2000


@dataclass(frozen=True)
class Workload:
    """A batch; by default that of the bar in benchmarks/RESULTS.md.

    Every contestant gets the same histories and sampled ids, because they depend only on these fields.

    Attributes:
        rows: requests in the batch, one row each.
        history: ids of each request before the first step: half prompt, half output.
        vocab_size: width of the logits.
        dtype: dtype of the logits.
        kinds: row i has kinds[i % len(kinds)]; None for a request without processors.
    """

    rows: int = 64
    history: int = 4096
    vocab_size: int = 151_936
    dtype: torch.dtype = torch.float32
    kinds: tuple[Kind | None, ...] = (THINKING, NGRAM, BAN)

    def kind(self, row: int) -> Kind | None:
        """The processor of a row's request."""
        return self.kinds[row % len(self.kinds)]

    def rows_by_kind(self) -> dict[Kind | None, list[int]]:
        """The rows of each kind, ascending; kinds that share a processor class are separate."""
        return {kind: [row for row in range(self.rows) if self.kind(row) is kind] for kind in dict.fromkeys(self.kinds)}

    def histories(self) -> NDArray[np.int32]:
        """Prompts and outputs, int32[rows, history]; a thinking block is open from the first id on."""
        ids = _draw(np.random.default_rng(_SEED), (self.rows, self.history), self.vocab_size)
        ids[:, 0] = START
        return ids

    def sampled(self, steps: int) -> list[list[int]]:
        """The id that each row gets at each step, [steps][rows]."""
        drawn: list[list[int]] = _draw(np.random.default_rng(_SEED + 1), (steps, self.rows), self.vocab_size).tolist()
        return drawn

    def logits(self) -> torch.Tensor:
        """Logits like those of a model, dtype[rows, vocab_size]."""
        generator = torch.Generator().manual_seed(_SEED)
        return torch.randn(self.rows, self.vocab_size, generator=generator).to(self.dtype)


def _draw(rng: np.random.Generator, shape: tuple[int, int], vocab_size: int) -> NDArray[np.int32]:
    """Draw ordinary ids with the frequencies of words: Zipf's law by Mandelbrot (1953), p(rank) ~ 1 / (rank + 2.7).

    The number of words is small, so that pairs of ids repeat about as often as in text, in which words depend on each
    other: 0.25 times on average in a history of 4096.
    """
    cumulated = np.cumsum(1 / (np.arange(1, _WORDS + 1) + 2.7))
    words = np.random.default_rng(_SEED).choice(
        np.arange(FIRST_ORDINARY, vocab_size, dtype=np.int32), _WORDS, replace=False
    )
    return words[np.searchsorted(cumulated / cumulated[-1], rng.random(shape))]
