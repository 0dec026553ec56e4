"""Processors that tests of several engines' hooks ship. Their output shows which history they got."""

from __future__ import annotations

from logitport import CustomLogitProcessor, EditProcessor


class Tilt(CustomLogitProcessor):
    """Reads logits, stateless: raises half of the ids, chosen by the last id and the number of output ids."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            request = params["__req__"]
            seen = [*request.origin_input_ids, *request.output_ids]
            row[(seen[-1] + len(request.output_ids)) % 2 :: 2] += params["by"]
        return logits


class TiltByLastId(CustomLogitProcessor):
    """Reads logits, stateless: raises half of the ids, chosen by the last id."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            request = params["__req__"]
            seen = [*request.origin_input_ids, *request.output_ids]
            row[seen[-1] % 2 :: 2] += params["by"]
        return logits


class CountsCalls(CustomLogitProcessor):
    """Keeps state that cannot be rebuilt from the history."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            params["calls"] = params.get("calls", 0) + 1
            row[3 + params["calls"] :: 7] += 20.0
        return logits


class ForcesCallCount(CustomLogitProcessor):
    """Forces an id that shows the number of its calls for the request, which cannot be rebuilt from the history."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            params["calls"] = params.get("calls", 0) + 1
            row[:] = float("-inf")
            row[100 + params["calls"]] = 0.0
        return logits


class ForcesLengths(EditProcessor):
    """Forces an id that shows the length of the prompt, then of the output."""

    def edit(self, request, edits):
        outputs = len(request.history) - request.history.prompt_length
        edits.force(100 + (outputs or request.history.prompt_length))


class RaisesAfter(EditProcessor):
    """Raises after `at` output ids."""

    def edit(self, request, edits):
        if len(request.history) - request.history.prompt_length == request.params["at"]:
            raise ValueError("too many output ids")
