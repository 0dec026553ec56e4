"""Processors as authors write them, each with parameters for the rows of a test."""

from __future__ import annotations

import torch

from logitport import Bool, Float, Int, TensorProcessor

INF = float("inf")


class MinP(TensorProcessor):
    params = {"min_p": Float(default=0.05, ge=0, le=1)}

    def process(self, logits, params, history):
        probs = logits.softmax(-1)
        return logits.masked_fill(probs < params.min_p[:, None] * probs.amax(-1, keepdim=True), -INF)


class ConstantScale(TensorProcessor):
    def process(self, logits, params, history):
        return logits / 0.7 + 1


class TopPFromBelow(TensorProcessor):
    """Sorts up, and assigns to the last place and in place."""

    params = {"top_p": Float(default=0.9, gt=0, le=1)}

    def process(self, logits, params, history):
        ordered, places = logits.sort(dim=-1, descending=False)
        remove = ordered.softmax(-1, dtype=torch.float32).cumsum(-1) <= 1 - params.top_p[:, None]
        remove[:, -1] = False
        ordered.masked_fill_(remove, -INF)
        return ordered.scatter(-1, places, ordered)


class TopPFromAbove(TensorProcessor):
    """Shifts the mask by one place, and assigns through a mask."""

    params = {"top_p": Float(default=0.9, gt=0, le=1)}

    def process(self, logits, params, history):
        ordered, places = torch.sort(logits, descending=True)
        remove = ordered.softmax(-1, dtype=torch.float32).cumsum(-1) > params.top_p.unsqueeze(1)
        remove[..., 1:] = remove[..., :-1].clone()
        remove[..., 0] = 0
        logits[remove.scatter(1, places, remove)] = -INF
        return logits


class TopKConstant(TensorProcessor):
    def process(self, logits, params, history):
        threshold = torch.topk(logits, min(50, logits.size(-1)))[0][..., -1, None]
        return logits.masked_fill(logits < threshold, -INF)


class TopKOfRequest(TensorProcessor):
    params = {"k": Int(default=50, ge=1)}

    def process(self, logits, params, history):
        ordered = logits.sort(-1).values
        place = (ordered.size(1) - params.k).clamp(min=0, max=logits.shape[-1] - 1)
        return logits.masked_fill(logits < ordered.gather(1, place.unsqueeze(1)), -INF)


class Eta(TensorProcessor):
    params = {"epsilon": Float(default=3e-4, ge=0, lt=1)}

    def process(self, logits, params, history):
        probs = logits.float().softmax(-1)
        entropy = torch.special.entr(probs).sum(-1)
        eta = torch.min(params.epsilon, torch.sqrt(params.epsilon) * torch.exp(-entropy))[..., None]
        best = logits < torch.topk(logits, 1)[0][..., -1, None]
        return torch.where((probs < eta) & best, -torch.inf, logits)


class EntropyGate(TensorProcessor):
    params = {"threshold": Float(default=2.0), "factor": Float(default=0.5), "on": Bool(default=True)}

    def process(self, logits, params, history):
        log_probs = logits.float() - logits.float().logsumexp(-1, keepdim=True)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        gate = torch.logical_and(entropy > params.threshold, params.on)
        return logits * torch.where(gate, params.factor, 1.0)[:, None]


class RepetitionPenalty(TensorProcessor):
    params = {"penalty": Float(default=1.2, gt=0)}

    def process(self, logits, params, history):
        penalty = params.penalty[:, None]
        return torch.where(history.token_mask(), torch.where(logits > 0, logits / penalty, logits * penalty), logits)


class Penalties(TensorProcessor):
    params = {"presence": Float(default=0.5), "frequency": Float(default=0.25)}

    def process(self, logits, params, history):
        counts = history.token_counts(generated_only=True)
        logits -= params.frequency.unsqueeze(1) * counts
        logits -= params.presence.unsqueeze(1) * (counts > 0)
        return logits


class SigmaFilter(TensorProcessor):
    params = {"n": Float(default=1)}

    def process(self, logits, params, history):
        threshold = logits.amax(-1, keepdim=True) - params.n[:, None] * logits.std(-1, keepdim=True)
        centered = logits - logits.mean(-1, keepdim=True)
        return torch.where(logits < threshold, -INF, centered)


class NoRepeat(TensorProcessor):
    """Reads the window: bans the last ids, and prefers one that is a constant number of places back."""

    params = {"bonus": Float(default=1)}
    window = 4

    def process(self, logits, params, history):
        recent = history.ids[:, -2:]
        recent = torch.where(recent < 0, logits.shape[-1], recent)
        padded = torch.cat([logits, torch.zeros_like(logits[:, :1])], dim=-1)
        banned = padded.scatter(-1, recent, -INF)[:, :-1]
        bonus = (history.lengths == 4)[:, None] & (torch.arange(logits.shape[-1])[None] == history.ids[:, :1])
        return torch.where(bonus, banned + params.bonus[:, None], banned)


class Padded(TensorProcessor):
    """Adds elements at both ends, to logits and to a mask."""

    def process(self, logits, params, history):
        padded = torch.nn.functional.pad(logits, (2, 1), value=-1.5)
        small = torch.nn.functional.pad(logits < 0, (0, 3), value=True)
        return torch.where(small, padded, 0)[:, 1:-2]


class ConstantIds(TensorProcessor):
    def process(self, logits, params, history):
        logits[:, [1, 5, -1]] = -INF
        logits[:, 7] = 2.0
        return logits.index_fill(-1, torch.tensor([8]), 3.0)


class Held(TensorProcessor):
    """Uses tensors of the class and of the module."""

    weights = torch.tensor([0.5, 0.25, 0.25])
    window = 3

    def process(self, logits, params, history):
        known = (history.ids >= 0).float() * self.weights
        return logits * (1 + known.sum(-1, keepdim=True)) * _TABLE[0]


class OneRowForAll(TensorProcessor):
    """Returns the same for all rows."""

    def process(self, logits, params, history):
        return torch.zeros_like(logits) + torch.arange(logits.shape[-1]).float().flip(-1)


_TABLE = torch.tensor([1.0, 2.0, 4.0, 8.0])

CASES = [
    (MinP, {"min_p": [0.1, 0.0, 1.0]}),
    (ConstantScale, {}),
    (TopPFromBelow, {"top_p": [0.3, 0.5, 0.9]}),
    (TopPFromAbove, {"top_p": [0.3, 0.5, 0.9]}),
    (TopKConstant, {}),
    (TopKOfRequest, {"k": [1, 50, 10_000]}),
    (Eta, {"epsilon": [1e-4, 1e-3, 0.5]}),
    (EntropyGate, {"threshold": [1.0, 100.0, 1.0], "factor": [0.5, 0.5, 0.25], "on": [True, True, False]}),
    (RepetitionPenalty, {"penalty": [1.2, 2.0, 0.5]}),
    (Penalties, {"presence": [0.5, 0.0, 1.0], "frequency": [0.0, 0.3, 0.1]}),
    (SigmaFilter, {"n": [1.0, 2.0, 0.5]}),
    (NoRepeat, {"bonus": [1.0, 2.0, 3.0]}),
    (Padded, {}),
    (ConstantIds, {}),
    (Held, {}),
    (OneRowForAll, {}),
]
