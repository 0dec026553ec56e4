"""Top-a: a threshold that grows with the square of the highest probability."""

import torch

from logitport import Float, TensorProcessor


class TopA(TensorProcessor):
    """Denies ids with a probability below a times the square of the highest one.

    Where the model is sure, few ids remain. Where it is not, nearly all do.

    Source: KoboldAI's `top_a`, https://github.com/KoboldAI/KoboldAI-Client

    Parameters:
        a: in [0, 1]; 0 keeps all ids.
    """

    params = {"a": Float(default=0.2, ge=0, le=1)}

    def process(self, logits, params, history):
        probabilities = logits.softmax(-1, dtype=torch.float32)
        threshold = params.a[:, None] * probabilities.amax(-1, keepdim=True).square()
        return logits.masked_fill(probabilities < threshold, -torch.inf)
