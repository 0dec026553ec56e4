"""XTC, without its dice: excludes the most probable ids, if there are good alternatives."""

import torch

from logitport import Float, TensorProcessor, TokenIds


class ExcludeTopChoices(TensorProcessor):
    """Denies all ids with at least the threshold's probability, except for the least probable of them.

    A step in which fewer than two ids reach the threshold stays as it is. XTC does this in a random part of the steps.
    A program has no random numbers, so this class does it in each step.

    Source: XTC of text-generation-webui, https://github.com/oobabooga/text-generation-webui/pull/6335

    Parameters:
        threshold: above 0 and at most 0.5; 0.1 is typical.
        keep: up to 16 ids that are never denied, such as the end of the sequence and the line break.
    """

    params = {"threshold": Float(default=0.1, gt=0, le=0.5), "keep": TokenIds(default=(), max_ids=16)}

    def process(self, logits, params, history):
        width = logits.shape[-1]
        probabilities = logits.softmax(-1, dtype=torch.float32)
        top = probabilities >= params.threshold[:, None]
        least = torch.where(top, probabilities, torch.inf).amin(-1, keepdim=True)
        places = torch.where((params.keep >= 0) & (params.keep < width), params.keep, width)
        kept = torch.zeros_like(logits[:, :1], dtype=torch.bool).expand(-1, width + 1).scatter(-1, places, True)
        return logits.masked_fill(top & (probabilities > least) & ~kept[:, :-1], -torch.inf)
