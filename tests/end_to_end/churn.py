"""Random sequences of added, removed and skipped requests, compared with a reference model of each request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport.session import Handle, Session, StepResult

VOCAB, MAX_LIVE = 24, 8
Chain = list[tuple[str, dict[str, Any]]]


@dataclass(eq=False)
class SingleRequest:
    """Base class of the reference model of one request."""

    chain: Chain
    prompt: list[int]
    output: list[int] = field(default_factory=list)


@dataclass
class Churn:
    """The requests of one session: the model of each, and its ids not yet sent to the session.

    New requests get the chains in turn. `processor` maps the kind of a chain entry to a registered processor.
    """

    session: Session
    random: np.random.Generator
    chains: list[Chain]
    model: Callable[[Chain, list[int]], Any]
    processor: Callable[[str], Any]
    on_error: Any = "abort"
    live: dict[Handle, Any] = field(default_factory=dict)
    new: dict[Handle, list[int]] = field(default_factory=dict)
    added: int = 0

    def next_step(self) -> list[Handle]:
        """Add and remove requests at random; return the requests of the next step in random order."""
        while len(self.live) < MAX_LIVE and self.random.random() < 0.8:
            self._add()
        if self.random.random() < 0.35:
            self.session.remove(gone := list(self.live)[self.random.integers(len(self.live))])
            del self.live[gone], self.new[gone]
        included = [handle for handle in self.live if self.random.random() < 0.8]
        self.random.shuffle(included)  # type: ignore[arg-type]
        return included

    def sampled(self, handle: Handle, token_ids: list[int]) -> None:
        self.new[handle] = token_ids
        self.live[handle].output += token_ids

    def _add(self) -> None:
        chain, prompt = self.chains[self.added % len(self.chains)], self.random.integers(VOCAB, size=3).tolist()
        resolved = [(self.processor(kind), params) for kind, params in chain]
        handle = self.session.add(Request(prompt, processors=resolved, on_error=self.on_error))
        self.live[handle], self.new[handle] = self.model(chain, prompt), []
        self.added += 1


def rows(session: Session, new_ids: Mapping[Handle, list[int]]) -> tuple[np.ndarray[Any, Any], StepResult]:
    """Apply a step to zeros: float32[requests, vocab_size]."""
    logits = np.zeros((len(new_ids), session.vocab_size), np.float32)
    return logits, session.step(new_ids).apply(logits, check=False)
