"""DRY over the last ids: a search in the history as tensor operations, with an unrolled loop."""

import torch

from logitport import Float, Int, TensorProcessor, TokenIds

LONGEST = 24  # a longer repetition counts as one of this length


class DryWindow(TensorProcessor):
    """Lowers the logit of each id that would continue a repetition within the last 128 ids.

    If the last n ids occurred before, the id that followed there gets the penalty
    multiplier * base ** (n - allowed_length), for the longest n.

    Source: "DRY" of llama.cpp and text-generation-webui, https://github.com/oobabooga/text-generation-webui/pull/5677

    Parameters:
        multiplier: of the penalty; 0 changes nothing.
        base: the growth of the penalty with each further id, at least 1.
        allowed_length: shorter repetitions have no penalty.
        breakers: up to 16 ids that end every repetition, such as those of newlines and quotes.

    The built-in `dry` does this for the whole history, without logits.
    """

    params = {
        "multiplier": Float(default=0.8, ge=0, le=1000),
        "base": Float(default=1.75, ge=1, le=10),
        "allowed_length": Int(default=2, ge=1, le=LONGEST),
        "breakers": TokenIds(default=(), max_ids=16),
    }
    window = 128

    def process(self, logits, params, history):
        width, window = logits.shape[-1], self.window
        ids = history.ids  # int64[rows, window]; the last id is in the last place, padding is -1
        ends = (ids < 0) | (ids[:, :, None] == params.breakers[:, None, :]).any(-1)
        # lengths[:, j]: how many ids before place j equal those at the end, so that ids[:, j] continued them.
        earlier = ids
        same = ids >= 0
        lengths = torch.zeros_like(ids)
        for last in range(window - 1, window - 1 - LONGEST, -1):
            earlier = torch.nn.functional.pad(earlier, (1, 0), value=-1)[:, :window]
            same = same & (earlier == ids[:, last : last + 1]) & ~ends[:, last : last + 1]
            lengths = lengths + same
        grown = params.base[:, None].pow((lengths - params.allowed_length[:, None]).float())
        penalties = torch.where(lengths >= params.allowed_length[:, None], params.multiplier[:, None] * grown, 0.0)
        # An id that occurs several times has its highest penalty at each of its places, so the order of writes does not
        # matter.
        highest = torch.where(ids[:, :, None] == ids[:, None, :], penalties[:, None, :], 0.0).amax(-1)
        places = torch.where((ids >= 0) & (ids < width), ids, width)  # one place more than the vocabulary takes others
        none = torch.zeros_like(logits[:, :1], dtype=torch.float32).expand(-1, width + 1)
        return logits - none.scatter(-1, places, highest)[:, :-1]
