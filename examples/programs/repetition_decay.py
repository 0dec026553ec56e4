"""A repetition penalty over the last ids, which fades with their distance."""

import torch

from logitport import Float, TensorProcessor


class RepetitionDecay(TensorProcessor):
    """Divides positive logits of the last 256 ids by a penalty, and multiplies the others by it; older ids less.

    An id that last occurred n ids ago has the penalty 1 + (penalty - 1) * decay ** n.

    Source: the penalty of Keskar et al. (2019), https://arxiv.org/abs/1909.05858, with a window and a decay

    Parameters:
        penalty: for the last id, at least 1.
        decay: what remains of the penalty with each further id, in (0, 1]; 1 is the same penalty for the whole window.
    """

    params = {"penalty": Float(default=1.3, ge=1), "decay": Float(default=0.99, gt=0, le=1)}
    window = 256

    def process(self, logits, params, history):
        width = logits.shape[-1]
        ids = history.ids  # the last id is in the last place
        age = torch.arange(self.window - 1, -1, -1, device=logits.device)
        strength = params.decay[:, None].pow(age.float())
        # One place more than the vocabulary takes the padding. Of equal ids, the last one remains, which is the latest.
        places = torch.where((ids >= 0) & (ids < width), ids, width)
        fresh = torch.zeros_like(logits[:, :1], dtype=torch.float32).expand(-1, width + 1)
        strengths = fresh.scatter(-1, places, strength)[:, :-1]
        factor = 1.0 + (params.penalty[:, None] - 1.0) * strengths
        penalized = torch.where(logits > 0, logits / factor, logits * factor)
        return torch.where(strengths > 0, penalized, logits)
