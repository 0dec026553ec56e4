"""Limits on a reasoning model's thinking and on its answer: phases from counts and the last ids."""

import torch

from logitport import Int, TensorProcessor

WINDOW = 1024


class ThinkAnswerLimits(TensorProcessor):
    """Forces the end of the thinking after so many ids, and the end of the output after so many ids of the answer.

    The output begins with the thinking, as with chat templates that end in the tag that opens it.

    Source: the budget forcing of Muennighoff et al. (2025), https://arxiv.org/abs/2501.19393, with a second limit

    Parameters:
        think_end: the id that ends the thinking, such as 151668 (</think>) of Qwen3.
        end: the id that ends the output.
        max_think: number of ids before `think_end`.
        max_answer: number of ids after it, before `end`.
    """

    params = {
        "think_end": Int(ge=0),
        "end": Int(ge=0),
        "max_think": Int(default=1024, ge=0),
        "max_answer": Int(default=256, ge=0, le=WINDOW - 1),
    }
    window = WINDOW

    def process(self, logits, params, history):
        counts = history.token_counts(generated_only=True)  # int64[rows, vocab]
        width = logits.shape[-1]
        length = counts.sum(-1)
        think_end = params.think_end.clamp(max=width - 1)[:, None]
        answering = counts.gather(-1, think_end)[:, 0] > 0
        # The answer begins after the first `think_end` of the output. If that has left the window, the answer is longer
        # than every limit.
        places = torch.arange(self.window, device=logits.device)
        in_output = places >= self.window - length[:, None]
        ends = in_output & (history.ids == params.think_end[:, None])
        outside = counts.gather(-1, think_end)[:, 0] > ends.sum(-1)
        answered = self.window - 1 - torch.where(ends, places, self.window).amin(-1)
        answered = torch.where(outside, self.window, answered)
        forces_think_end = ~answering & (length >= params.max_think)
        forces_end = answering & (answered >= params.max_answer)
        forced = torch.where(answering, params.end, params.think_end)
        is_forced = torch.arange(width, device=logits.device) == forced[:, None]
        row = torch.zeros_like(logits).masked_fill(~is_forced, -torch.inf)
        return torch.where((forces_think_end | forces_end)[:, None], row, logits)
