"""Classifier-free guidance without a second pass of the engine: the two requests of a pair share their logits."""

import torch

from logitport import CustomLogitProcessor, InvalidArgument


class Guidance(CustomLogitProcessor):
    """Gives both requests of a pair the guided logits: plain + scale * (guided - plain), of log-probabilities.

    Parameters of a request:
        pair: a name that only the two requests of the pair have.
        scale: of the guided request, at least 1; the plain one has none.
    """

    @classmethod
    def validate_params(cls, params):
        if not isinstance(params.get("pair"), str):
            raise InvalidArgument("set pair to a text that both requests of the pair have, and no other request")
        if "scale" in params and not 1 <= params["scale"] <= 100:
            raise InvalidArgument(
                "set scale to a number in [1, 100] for the guided request; leave it out for the other"
            )

    def __call__(self, logits, custom_param_list):  # float[rows, vocab_size]: all requests with this class
        guided = {params["pair"]: row for row, params in enumerate(custom_param_list) if "scale" in params}
        plain = {params["pair"]: row for row, params in enumerate(custom_param_list) if "scale" not in params}
        for pair in guided.keys() ^ plain.keys():  # its partner is not in this step
            logits[{**guided, **plain}[pair]] = torch.nan  # fails this request alone; an exception would fail all
        for pair in guided.keys() & plain.keys():
            rows = [guided[pair], plain[pair]]
            with_prompt, without = logits[rows].float().log_softmax(-1)
            scale = custom_param_list[guided[pair]]["scale"]
            mixed = without + scale * (with_prompt - without)
            logits[rows] = mixed.masked_fill(with_prompt == -torch.inf, -torch.inf).to(logits.dtype)
        return logits
