"""A watermark: favors ids by a hash of the last id and a key."""

import torch

from logitport import Float, Int, TensorProcessor


class Watermark(TensorProcessor):
    """Adds a bias to the green ids: a pseudorandom part of the vocabulary, which the last id and a key choose.

    The hash is x * (2 * x + 1) of RC6, modulo 2**64, of x = id * A + last * B + key. A detector with the key counts how
    often an id is green after the one before it.

    Sources: Kirchenbauer et al. (2023), https://arxiv.org/abs/2301.10226; the hash of Rivest et al., RC6 (1998)

    Parameters:
        key: the secret of the watermark.
        ratio: the part of the vocabulary that is green.
        bias: what is added to the logits of green ids.
    """

    params = {"key": Int(), "ratio": Float(default=0.25, gt=0, lt=1), "bias": Float(default=2.0, ge=0)}
    window = 1

    def process(self, logits, params, history):
        ids = torch.arange(logits.shape[-1], device=logits.device)
        seed = history.ids * 6364136223846793005 + (params.key * 1442695040888963407)[:, None]
        x = seed + ids * 2862933555777941757
        mixed = x * (x * 2 + 1)  # wraps; in [-2**63, 2**63)
        green = mixed.float() < (params.ratio[:, None] * 2.0 - 1.0) * 2.0**63
        started = (history.lengths > 0)[:, None]
        return logits + torch.where(green & started, params.bias[:, None], 0.0)
