"""Minimal processors that several test modules ship, register or call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from logitport import CustomLogitProcessor, EditProcessor, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport import EditRequest, RowEdits


class DenyHistory(EditProcessor):
    """Denies the ids of the history, of which it keeps a copy as state."""

    def start(self, request: EditRequest) -> None:
        request.state = request.history.token_ids.tolist()

    def advance(self, request: EditRequest, token_id: int) -> None:
        request.state.append(token_id)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.state)


class FailsAfterZero(EditProcessor):
    """Raises if the last id of the history is 0."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        if request.history.token_ids[-1] == 0:
            raise ValueError("the last id is 0")


class Unchanged(CustomLogitProcessor):
    """Returns the logits unchanged."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


class AddOne(CustomLogitProcessor):
    """Adds 1 in a new tensor."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits + 1


class AddOneInPlace(CustomLogitProcessor):
    """Adds 1 in place."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.add_(1)


class AddTwo(CustomLogitProcessor):
    """Adds 2 in a new tensor."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits + 2


class Double(CustomLogitProcessor):
    """Doubles the logits in a new tensor."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits * 2


class DoubleInPlace(CustomLogitProcessor):
    """Doubles the logits in place."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.mul_(2)


class DoubleLater(CustomLogitProcessor):
    """Doubles logits on a GPU in place, after about one second of GPU time."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        torch.cuda._sleep(2_000_000_000)
        return logits.mul_(2)


class HalveInPlace(CustomLogitProcessor):
    """Halves the logits in place."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits.mul_(0.5)


class AddCallCount(CustomLogitProcessor):
    """Adds the number of its calls for the request, which it keeps in the request's parameters."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        for row, params in enumerate(custom_param_list):
            params["calls"] = params.get("calls", 0) + 1
            logits[row] += params["calls"]
        return logits


class RaisesInInit(CustomLogitProcessor):
    """Raises when it is instantiated."""

    def __init__(self) -> None:
        raise ValueError("no table for me")

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        return logits


class RaisesInCall(CustomLogitProcessor):
    """Raises in every call, before it changes the logits."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        raise ValueError("out of luck")


class RaisesAfterWriting(CustomLogitProcessor):
    """Raises in every call, after it has set the logits to zero."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:
        logits.zero_()
        raise ValueError


class RequiresFloat(AddOne):
    """Rejects parameters without a float `strength`."""

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        if not isinstance(params["strength"], float):
            raise InvalidArgument("strength must be a number with a point")
        if params["strength"] < 0:
            raise ValueError("strength must not be negative")


class FailsInWay(CustomLogitProcessor):
    """Overwrites some logits with NaN, then fails in the way that the parameter `way` names."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> Any:
        way = custom_param_list[0]["way"]
        logits[:, :8] = float("nan")
        if way == "raises":
            return self.look_up(custom_param_list[0])
        if way == "exits":
            sys.exit(1)
        return {
            "None": None,
            "shape": logits[:, :-1],
            "int": logits.int(),
            "list": [[0.0]],
        }[way]

    def look_up(self, params: dict[str, Any]) -> Any:
        return params["banned"]
