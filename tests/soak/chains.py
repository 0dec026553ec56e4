"""The processors of the soak test, with a reference implementation of each that does not use the service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, RowEdits
from tests.toy_processors import AddCallCount

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    import torch

INF = float("inf")


class ScaleByFactor(CustomLogitProcessor):
    """Scales a row by the parameter `factor`. Reads logits and keeps no state."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, params in enumerate(custom_param_list or []):
            logits[row] *= params["factor"]
        return logits


class Spread(EditProcessor):
    """Reads no logits, and keeps state that is a function of the history."""

    def start(self, request: EditRequest) -> None:
        request.state = [0] * 3
        for token_id in request.history.token_ids.tolist():
            self.advance(request, token_id)

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state[token_id % 3] += 1

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        most = request.state.index(max(request.state))
        edits.deny(range(most, request.vocab_size, request.params["stride"]))
        edits.bias([most], 2.0)


@dataclass
class ChainEntry:
    """One processor of a request's chain.

    Attributes:
        processor: name of a built-in, or a class.
        params: parameters of the processor.
        expect: the reference: changes a row, float[vocab_size], given the history, the parameters and its state.
        state: state of the reference.
    """

    processor: Any
    params: dict[str, Any]
    expect: Callable[[torch.Tensor, list[int], dict[str, Any], dict[str, int]], None]
    state: dict[str, int] = field(default_factory=dict)

    @property
    def shipped(self) -> bool:
        """Whether the processor runs in a worker."""
        return not isinstance(self.processor, str)


def random_chain(random: Random, vocab_size: int) -> list[ChainEntry]:
    """Return a chain of one to three processors."""
    makers = [
        lambda: ChainEntry("disallowed_tokens", {"token_ids": random.sample(range(vocab_size), 5)}, _disallowed),
        lambda: ChainEntry("no_repeat_ngram", {"ngram_size": random.randint(1, 3)}, _no_repeat),
        lambda: ChainEntry(ScaleByFactor, {"factor": random.choice([0.5, -2.0, 1.25])}, _scale),
        lambda: ChainEntry(AddCallCount, {"of": random.randint(0, 9)}, _count),
        lambda: ChainEntry(Spread, {"stride": random.randint(3, 9)}, _spread),
    ]
    return [random.choice(makers)() for _ in range(random.randint(1, 3))]


def _disallowed(row: torch.Tensor, history: list[int], params: dict[str, Any], state: dict[str, int]) -> None:
    row[params["token_ids"]] = -INF


def _no_repeat(row: torch.Tensor, history: list[int], params: dict[str, Any], state: dict[str, int]) -> None:
    size = params["ngram_size"]
    tail = history[len(history) - size + 1 :]
    for start in range(len(history) - size + 1):
        if history[start : start + size - 1] == tail:
            row[history[start + size - 1]] = -INF


def _scale(row: torch.Tensor, history: list[int], params: dict[str, Any], state: dict[str, int]) -> None:
    row *= params["factor"]


def _count(row: torch.Tensor, history: list[int], params: dict[str, Any], state: dict[str, int]) -> None:
    state["calls"] = state.get("calls", 0) + 1
    row += state["calls"]


def _spread(row: torch.Tensor, history: list[int], params: dict[str, Any], state: dict[str, int]) -> None:
    counts = [sum(token_id % 3 == rest for token_id in history) for rest in range(3)]
    most = counts.index(max(counts))
    row[most :: params["stride"]] = -INF
    row[most] += 2.0
