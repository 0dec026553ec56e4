"""The innocent engine's batch, and the rows that it must get, computed without the service."""

from __future__ import annotations

from collections import defaultdict

import torch

from benchmarks.kinds import BAN, NGRAM, TEMPERATURE, THINKING, distinct
from benchmarks.workloads import Workload

(SHIPPED_BAN,) = distinct(1)
# Eight rows of built-ins, one shipped processor that reads no logits, and one that does.
WORKLOAD = Workload(
    rows=10,
    history=64,
    vocab_size=32_000,
    kinds=(*(THINKING, NGRAM, BAN) * 2, THINKING, NGRAM, SHIPPED_BAN, TEMPERATURE),
)
_BANNED = torch.tensor(BAN.params["token_ids"])
_N = NGRAM.params["ngram_size"]


class Reference:
    """The histories of all rows, and the logits that they must get."""

    def __init__(self) -> None:
        self._histories = WORKLOAD.histories().tolist()
        self._continuations: list[dict[tuple[int, ...], set[int]]] = [defaultdict(set) for _ in self._histories]
        for row, history in enumerate(self._histories):
            for end in range(_N, len(history) + 1):
                self._note(row, history[:end])

    def append(self, token_ids: list[int]) -> None:
        """Extend the history of each row."""
        for row, token_id in enumerate(token_ids):
            self._histories[row].append(token_id)
            self._note(row, self._histories[row])

    def expected(self, logits: torch.Tensor) -> torch.Tensor:
        """The processed logits of all rows."""
        expected = logits.clone()
        for row, history in enumerate(self._histories):
            kind = WORKLOAD.kind(row)
            if kind is NGRAM:
                denied = self._continuations[row].get(tuple(history[1 - _N :]), set())
                expected[row, sorted(denied)] = -torch.inf
            elif kind is BAN or kind is SHIPPED_BAN:
                expected[row, _BANNED] = -torch.inf
            elif kind is TEMPERATURE:
                expected[row] /= TEMPERATURE.params["temperature"]
        return expected

    def _note(self, row: int, history: list[int]) -> None:
        *begin, last = history[-_N:]
        self._continuations[row][tuple(begin)].add(last)
