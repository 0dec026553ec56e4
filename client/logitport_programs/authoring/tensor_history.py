"""The histories of the rows of one step, as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class TensorHistory:
    """The token ids of each row's request: prompt and output.

    Attributes:
        ids: int64[rows, window], the last ids, aligned at the end; -1 where there are none.
        lengths: int64[rows], the number of ids in `ids` that are not padding.
    """

    ids: torch.Tensor
    lengths: torch.Tensor

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        window: int,
        vocab_size: int,
        device: torch.device | str,
    ) -> None:
        import torch

        tails = [_tail(prompt, output, window) for prompt, output in zip(prompts, outputs, strict=True)]
        ids = np.full((len(tails), window), -1, np.int64)
        for row, tail in zip(ids, tails, strict=True):
            row[window - len(tail) :] = tail
        self.ids = torch.from_numpy(ids).to(device)
        self.lengths = torch.tensor([len(tail) for tail in tails], dtype=torch.int64, device=device)
        self._prompts, self._outputs = prompts, outputs
        self._vocab_size, self._device = vocab_size, device
        self._counts: dict[bool, torch.Tensor] = {}

    def token_mask(self, *, generated_only: bool = False) -> torch.Tensor:
        """Return bool[rows, vocab]: whether the id is in the whole history, or in its output."""
        return self.token_counts(generated_only=generated_only) > 0

    def token_counts(self, *, generated_only: bool = False) -> torch.Tensor:
        """Return int64[rows, vocab]: how often the id is in the whole history, or in its output."""
        import torch

        if generated_only not in self._counts:
            counts = np.zeros((len(self._prompts), self._vocab_size), np.int64)
            for row, (prompt, output) in enumerate(zip(self._prompts, self._outputs, strict=True)):
                for ids in (output,) if generated_only else (prompt, output):
                    array = np.asarray(ids, np.int64)
                    inside = array[(array >= 0) & (array < self._vocab_size)]  # others do not count
                    counts[row] += np.bincount(inside, minlength=self._vocab_size)
            self._counts[generated_only] = torch.from_numpy(counts).to(self._device)
        return self._counts[generated_only].clone()  # a processor may write to it


def _tail(prompt: Sequence[int], output: Sequence[int], window: int) -> list[int]:
    """The last ids, without a copy of a long history."""
    last = list(output[max(0, len(output) - window) :])
    missing = window - len(last)
    return [*prompt[max(0, len(prompt) - missing) :], *last] if missing else last
