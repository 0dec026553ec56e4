"""Contrast to a constant: lowers ids that are likely in every text."""

import torch

from logitport import Float, TensorProcessor


class UnigramContrast(TensorProcessor):
    """Subtracts the logarithm of each id's frequency, so that specific ids are preferred to common ones.

    Ids with a low probability stay as they are: among them, rare ids would win without a reason.

    Source: the anti-language model of Li et al. (2016), https://arxiv.org/abs/1510.03055, with unigrams

    Parameters:
        weight: of the frequencies; 0 changes nothing.
        plausible: ids with less than this part of the highest probability stay as they are.

    The tensor becomes a constant of the program, which may have 3.7 MiB.
    """

    params = {"weight": Float(default=0.2, ge=0), "plausible": Float(default=0.05, gt=0, le=1)}

    # Replace it by the frequencies of your corpus. Here: Zipf's law, for a tokenizer that numbers ids by frequency.
    log_frequencies = -torch.log(torch.arange(4096) + 2.7)

    def process(self, logits, params, history):
        scores = logits.float()
        ids = torch.arange(logits.shape[-1], device=logits.device)
        known = ids.clamp(max=self.log_frequencies.shape[0] - 1)  # ids behind the table are as rare as its last one
        frequencies = self.log_frequencies.to(logits.device)[known]
        likely = scores > scores.amax(-1, keepdim=True) + params.plausible[:, None].log()
        lowest = frequencies.amin()
        return torch.where(likely, scores - params.weight[:, None] * (frequencies - lowest), scores)
