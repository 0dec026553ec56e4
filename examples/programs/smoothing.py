"""Quadratic smoothing: brings good alternatives closer to the best id, and pushes the tail away."""

import torch

from logitport import Float, TensorProcessor


class Smoothing(TensorProcessor):
    """Bends the distance of each logit to the highest one by a polynomial.

    With d = logit - highest, the logit becomes highest - factor * (k * d ** 2 - s * d ** 3), where k is
    (3 - curve) / 2 and s is (curve - 1) / 2.

    Source: `smoothing_factor` and `smoothing_curve` of text-generation-webui,
    https://github.com/oobabooga/text-generation-webui

    Parameters:
        factor: strength of the bend, above 0; 0.2 to 0.3 is typical.
        curve: from 1, a parabola, to 3, a cubic.
    """

    params = {"factor": Float(default=0.25, gt=0), "curve": Float(default=1.0, ge=1, le=3)}

    def process(self, logits, params, history):
        scores = logits.float()
        highest = scores.amax(-1, keepdim=True)
        distance = scores - highest
        square = distance * distance
        k, s = ((3.0 - params.curve) / 2.0)[:, None], ((params.curve - 1.0) / 2.0)[:, None]
        bent = highest - params.factor[:, None] * (k * square - s * square * distance)
        return torch.where(scores > -torch.inf, bent, -torch.inf)  # a product of 0 and -inf is NaN
