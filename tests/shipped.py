"""Processors that tests of several engines' hooks ship: what they write shows what they were told."""

from __future__ import annotations

from logitport import CustomLogitProcessor, EditProcessor


class Tilt(CustomLogitProcessor):
    """Reads logits, keeps nothing: the id sampled last, and how many there are, decide which half gains."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            request = params["__req__"]
            seen = [*request.origin_input_ids, *request.output_ids]
            row[(seen[-1] + len(request.output_ids)) % 2 :: 2] += params["by"]
        return logits


class CountsCalls(CustomLogitProcessor):
    """Keeps a state that no history gives back."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            params["calls"] = params.get("calls", 0) + 1
            row[3 + params["calls"] :: 7] += 20.0
        return logits


class TellsLengths(EditProcessor):
    """Writes how long the prompt is, then how long the output."""

    def edit(self, request, edits):
        outputs = len(request.history) - request.history.prompt_length
        edits.force(100 + (outputs or request.history.prompt_length))


class Trips(EditProcessor):
    """Raises behind as many ids as it was told."""

    def edit(self, request, edits):
        if len(request.history) - request.history.prompt_length == request.params["at"]:
            raise ValueError("enough of it")
