"""A target for the entropy: what mirostat controls by feedback, solved in each step instead."""

import torch

from logitport import Float, TensorProcessor

LOWEST, HIGHEST = 0.05, 4.0  # temperatures


class TargetEntropy(TensorProcessor):
    """Divides the logits by the temperature at which their entropy is the target.

    Mirostat keeps the average surprise at a target with a state that follows the sampled ids. This class has no state:
    the expected surprise is the entropy, and eight bisections find its temperature, which is between 0.05 and 4.

    Source: Basu et al. (2021), https://arxiv.org/abs/2007.14966

    Parameters:
        bits: the entropy, above 0; mirostat's tau.
    """

    params = {"bits": Float(default=3.0, gt=0)}

    def process(self, logits, params, history):
        scores = logits.float()
        scores = scores - scores.amax(-1, keepdim=True)
        target = (params.bits * 0.6931471805599453)[:, None]
        low = torch.full_like(target, LOWEST)
        high = torch.full_like(target, HIGHEST)
        for _ in range(8):  # a loop without values of tensors: it is unrolled
            middle = (low + high) / 2.0
            log_probabilities = (scores / middle).log_softmax(-1)
            entropy = -(log_probabilities.exp() * log_probabilities).nansum(-1, keepdim=True)
            low = torch.where(entropy < target, middle, low)
            high = torch.where(entropy < target, high, middle)
        return logits / ((low + high) / 2.0)
