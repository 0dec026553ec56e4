"""Requests that come, go and sit out steps, for tests that compare each with a model of it by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from logitport import CustomLogitProcessor, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport import Handle, Session, StepResult

VOCAB, MOST = 24, 8
Chain = list[tuple[str, dict[str, Any]]]


class Doubles(CustomLogitProcessor):
    """Of another dialect than what else is in a chain."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits * 2


@dataclass(eq=False)
class Alone:
    """One request by itself; what a model of it derives from."""

    chain: Chain
    prompt: list[int]
    output: list[int] = field(default_factory=list)


@dataclass
class Churn:
    """The requests of one session: the model of each, and the ids that the session has not been told of.

    Chains are given to who comes one after the other; `processor` says what a link is to the service.
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

    def turn(self) -> list[Handle]:
        """Some come and one may go; who takes part in the next step, in any order."""
        while len(self.live) < MOST and self.random.random() < 0.8:
            self._add()
        if self.random.random() < 0.35:
            self.session.remove(gone := list(self.live)[self.random.integers(len(self.live))])
            del self.live[gone], self.new[gone]
        part = [handle for handle in self.live if self.random.random() < 0.8]
        self.random.shuffle(part)  # type: ignore[arg-type]
        return part

    def sampled(self, handle: Handle, token_ids: list[int]) -> None:
        self.new[handle] = token_ids
        self.live[handle].output += token_ids

    def _add(self) -> None:
        chain, prompt = self.chains[self.added % len(self.chains)], self.random.integers(VOCAB, size=3).tolist()
        asked = [(self.processor(kind), params) for kind, params in chain]
        handle = self.session.add(Request(prompt, processors=asked, on_error=self.on_error))
        self.live[handle], self.new[handle] = self.model(chain, prompt), []
        self.added += 1


def rows(session: Session, told: Mapping[Handle, list[int]]) -> tuple[np.ndarray[Any, Any], StepResult]:
    """What a step makes of zeros: float32[requests, vocab_size]."""
    logits = np.zeros((len(told), session.vocab_size), np.float32)
    return logits, session.step(told).apply(logits, check=False)
