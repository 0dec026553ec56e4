"""Processors that clients ship as programs: `TensorProcessor` classes, which the engine's session runs."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

import torch

from benchmarks import kinds
from benchmarks.kinds import Kind
from logitport import Float, TensorProcessor
from logitport.programs.tensor_history import TensorHistory

WINDOW = 4096


class Temperature(TensorProcessor):
    """Divides, without the greedy rows of the built-in: the same work as `kinds.Temperature`."""

    params: ClassVar = {"temperature": Float(ge=0.01, le=100)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        return logits / params.temperature[:, None]


class MinP(TensorProcessor):
    """Denies ids with a probability below p times the highest one."""

    params: ClassVar = {"min_p": Float(ge=0, le=1)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        probabilities = logits.softmax(-1)
        least = params.min_p[:, None] * probabilities.amax(-1, keepdim=True)
        return logits.masked_fill(probabilities < least, -torch.inf)


class EntropyGate(TensorProcessor):
    """Divides the rows whose entropy is above a threshold."""

    params: ClassVar = {"threshold": Float(ge=0, le=100), "temperature": Float(ge=0.01, le=100)}

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:  # noqa: ARG002
        log_p = logits.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1, keepdim=True)
        return torch.where(entropy > params.threshold[:, None], logits / params.temperature[:, None], logits)


class RepetitionPenalty(TensorProcessor):
    """Divides positive logits of the last ids by a penalty, and multiplies the other ones by it."""

    params: ClassVar = {"penalty": Float(ge=0.01, le=100)}
    window = WINDOW

    def process(self, logits: torch.Tensor, params: Any, history: TensorHistory) -> torch.Tensor:
        penalty = params.penalty[:, None]
        score = logits.gather(-1, history.ids)
        penalized = torch.where(score > 0, score / penalty, score * penalty)
        return logits.scatter(-1, history.ids, penalized.to(logits.dtype))


def _without_peer(_: ModuleType) -> type:
    raise NotImplementedError("SGLang has no such processor")


TEMPERATURE = Kind("temperature", kinds.TEMPERATURE.params, Temperature, kinds.TEMPERATURE.theirs)
MIN_P = Kind("min-p", {"min_p": 0.1}, MinP, _without_peer)
ENTROPY_GATE = Kind("entropy gate", {"threshold": 5.0, "temperature": 2.0}, EntropyGate, _without_peer)
PENALTY = Kind(f"repetition penalty over {WINDOW} ids", {"penalty": 1.1}, RepetitionPenalty, _without_peer)
