"""Dynamic temperature: a low temperature where the model is sure, a high one where it is not."""

import torch

from logitport import Float, TensorProcessor


class DynamicTemperature(TensorProcessor):
    """Divides the logits by a temperature that follows their entropy.

    The temperature is low + (high - low) * (entropy / log(vocab)) ** exponent.

    Source: llama.cpp's `dynatemp_range` and `dynatemp_exponent`, https://github.com/ggml-org/llama.cpp

    Parameters:
        low: temperature at entropy 0.
        high: temperature at the highest entropy, that of equal logits.
        exponent: above 1, the temperature stays low for longer.
    """

    params = {
        "low": Float(default=0.5, gt=0),
        "high": Float(default=1.5, gt=0),
        "exponent": Float(default=1.0, gt=0),
    }

    def process(self, logits, params, history):
        log_probabilities = logits.float().log_softmax(-1)
        terms = log_probabilities.exp() * log_probabilities
        entropy = -terms.nansum(-1)  # 0 * -inf of denied ids is NaN, and counts as 0
        highest = torch.ones_like(terms).sum(-1).log()
        share = (entropy / highest).clamp(0.0, 1.0).pow(params.exponent)
        temperature = params.low + (params.high - params.low) * share
        return logits / temperature[:, None]
