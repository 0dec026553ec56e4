"""A list of ids as a parameter: only these may be sampled."""

import torch

from logitport import TensorProcessor, TokenIds


class AllowIds(TensorProcessor):
    """Denies all ids that are not in a request's list. An empty list changes nothing.

    Source: the choices of a classifier, as `allowed_token_ids` of vLLM, https://docs.vllm.ai

    Parameters:
        ids: up to 256 ids; those outside the vocabulary are ignored.
    """

    params = {"ids": TokenIds(default=(), max_ids=256)}

    def process(self, logits, params, history):
        width = logits.shape[-1]
        known = (params.ids >= 0) & (params.ids < width)
        # One place more than the vocabulary takes the padding, -1, and unknown ids.
        places = torch.where(known, params.ids, width)
        denied = torch.ones_like(logits[:, :1], dtype=torch.bool).expand(-1, width + 1).scatter(-1, places, False)
        return logits.masked_fill(denied[:, :-1] & known.any(-1, keepdim=True), -torch.inf)
