"""Top-n-sigma: keeps the logits within n standard deviations of the highest one."""

import torch

from logitport import Float, TensorProcessor


class TopNSigma(TensorProcessor):
    """Denies ids with a logit below the highest one minus n times the standard deviation of the logits.

    Unlike top-p and min-p, the remaining ids are the same at every temperature. Ids that are denied already do not
    count in the deviation.

    Source: Tang et al. (2024), https://arxiv.org/abs/2411.07641

    Parameters:
        n: the number of standard deviations, above 0; 1 is typical.
    """

    params = {"n": Float(default=1.0, gt=0)}

    def process(self, logits, params, history):
        scores = logits.float()
        finite = scores > -torch.inf
        count = finite.sum(-1, keepdim=True).float()
        mean = torch.where(finite, scores, 0.0).sum(-1, keepdim=True) / count
        variance = torch.where(finite, (scores - mean).square(), 0.0).sum(-1, keepdim=True) / count
        lowest = scores.amax(-1, keepdim=True) - params.n[:, None] * variance.sqrt()
        return logits.masked_fill(scores < lowest, -torch.inf)
