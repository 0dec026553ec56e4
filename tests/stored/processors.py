"""Processors that refer to names of the SDK and of the built-ins. Every later version must keep these names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from logitport import CustomLogitProcessor, EditProcessor, History, InvalidArgument, RowEdits
from logitport_builtins import DisallowedTokens, NoRepeatNGram, ThinkingBudgetLogitProcessor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from logitport import EditRequest


class AllEdits(EditProcessor):
    """Makes every kind of edit, depending on the length of the output and its own state."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        if "bias" not in params:
            raise InvalidArgument("bias is missing")

    def start(self, request: EditRequest) -> None:
        request.state = [int(token_id) for token_id in request.history.token_ids]

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state.append(token_id)

    def rewind(self, request: EditRequest) -> None:
        del request.state[len(request.history) :]

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        assert isinstance(request.history, History)
        assert isinstance(edits, RowEdits)
        outputs = len(request.history) - request.history.prompt_length
        if outputs == 0:
            edits.deny(request.state)
            edits.bias([0, 1], [request.params["bias"], -1.0])
        elif outputs == 1:
            edits.allow([*request.state, 11, 12])
        else:
            edits.force(request.state[-1])


class FewerRepeats(NoRepeatNGram):
    """A subclass of a built-in."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        super().edit(request, edits)
        edits.deny([request.vocab_size - 1])


class Budget(ThinkingBudgetLogitProcessor):
    """A subclass of a class of SGLang, as users of SGLang write them."""

    THINKING_START_TOKEN_ID = 5
    THINKING_END_TOKEN_ID = 6
    NEW_LINE_TOKEN_ID = 4


class DisallowsByCall(DisallowedTokens):
    """A subclass of a logits-free class that overrides `__call__`, and so reads logits."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return super().__call__(logits, custom_param_list).mul_(2)


class Tilt(CustomLogitProcessor):
    """Reads logits: adds `by` to the ids above the last one, for each output."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, params in zip(logits, custom_param_list, strict=True):
            request = params["__req__"]
            ids = [*request.origin_input_ids, *request.output_ids]
            row[ids[-1] :] += params["by"] * (1 + len(request.output_ids))
        return logits


class FailsAt(EditProcessor):
    """Raises once the output has `at` ids. Overrides `edit_batch`, so that its traceback has no path of the SDK."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if len(request.history) - request.history.prompt_length == request.params["at"]:
            raise ValueError("the output is long enough")
        edits.deny([0])

    def edit_batch(self, requests: Sequence[EditRequest], edits: Sequence[RowEdits]) -> None:
        for request, row_edits in zip(requests, edits, strict=True):
            self.edit(request, row_edits)


class Exits(EditProcessor):
    """Ends its process, so that it is quarantined."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(3)


def halve_seen(input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
    """A function of the dialect of transformers."""
    return scores.scatter(1, input_ids, scores.gather(1, input_ids) / 2)


def halve_any(ids: torch.LongTensor, values: torch.FloatTensor) -> torch.FloatTensor:
    """The same, with argument names that do not identify the dialect."""
    return torch.where(torch.isin(torch.arange(values.shape[1]), ids), values / 2, values)
