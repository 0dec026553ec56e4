"""Processors with one planted defect each, and the law that it breaks."""

# ruff: noqa: PLW0603
from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from logitport import CustomLogitProcessor, EditProcessor, InvalidArgument

HERE = __file__


class CountsInAdvance(EditProcessor):
    """`start` ignores the history: after a restart the count begins at 0 again."""

    def start(self, request):
        request.state = 0

    def advance(self, request, token_id):
        request.state += 1

    def edit(self, request, edits):
        edits.bias([0], float(request.state))


class ForgetsToAdvance(EditProcessor):
    """State is built by `start`, and no `advance` updates it."""

    def start(self, request):
        request.state = request.history.last_output

    def edit(self, request, edits):
        if request.state is not None:
            edits.deny([request.state])


class CountsEdits(EditProcessor):
    """`edit` changes the state, so that the number of steps matters."""

    def start(self, request):
        request.state = [0]

    def edit(self, request, edits):
        request.state[0] += 1
        edits.bias([0], float(request.state[0]))


class RewindsNothing(EditProcessor):
    """The state after `rewind` has ids that were cut off."""

    def start(self, request):
        request.state = set(request.history.output_token_ids.tolist())

    def advance(self, request, token_id):
        request.state.add(token_id)

    def rewind(self, request):
        pass

    def edit(self, request, edits):
        edits.deny(sorted(request.state))


class RemembersOnTheInstance(EditProcessor):
    """The state is the instance's, which all requests share."""

    def start(self, request):
        self.last = request.history.last_output

    def advance(self, request, token_id):
        self.last = token_id

    def edit(self, request, edits):
        if self.last is not None:
            edits.deny([self.last])


class SortsItsBatch(EditProcessor):
    """`edit_batch` gives rows the edits of other rows."""

    def edit(self, request, edits):
        edits.deny(request.history.token_ids[-1:])

    def edit_batch(self, requests, edits):
        ordered = sorted(requests, key=lambda request: request.history.length)
        for request, row_edits in zip(ordered, edits, strict=True):
            self.edit(request, row_edits)


class NormalizesTheBatch(CustomLogitProcessor):
    """The maximum is that of all rows."""

    def __call__(self, logits, custom_param_list=None):
        return torch.where(logits < logits.max() - 5, -torch.inf, logits)


class ChecksNothing(EditProcessor):
    """`edit` needs a parameter that `validate_params` does not check."""

    def edit(self, request, edits):
        edits.deny(request.params["token_ids"])


class ChecksTooLittle(EditProcessor):
    """`validate_params` accepts every number, and `edit` only some."""

    @classmethod
    def validate_params(cls, params):
        if not isinstance(params.get("period"), int) or isinstance(params["period"], bool):
            raise InvalidArgument("period must be an integer")

    def edit(self, request, edits):
        if request.history.length % request.params["period"] == 0:
            edits.deny([1])


class RefusesWithTypeError(EditProcessor):
    """Refused parameters look like a failure of the processor."""

    @classmethod
    def validate_params(cls, params):
        if params["factor"] < 0:
            raise InvalidArgument("factor must be 0 or more")

    def edit(self, request, edits):
        edits.bias([1], float(request.params["factor"]))


class DeniesTheNextId(EditProcessor):
    """The id after the last one of the vocabulary is outside it."""

    def edit(self, request, edits):
        last = request.history.last_output
        if last is not None:
            edits.deny([last + 1])


class ReturnsFewerIds(CustomLogitProcessor):
    """The width of the logits is assumed."""

    def __call__(self, logits, custom_param_list=None):
        return logits[:, :64]


class MultipliesByZero(CustomLogitProcessor):
    """0 times -inf is NaN."""

    @classmethod
    def validate_params(cls, params):
        if not isinstance(params.get("factor"), float):
            raise InvalidArgument("factor must be a number")

    def __call__(self, logits, custom_param_list=None):
        return logits * torch.tensor([params["factor"] for params in custom_param_list])[:, None]


class BiasesByInfinity(EditProcessor):
    """A bias must be finite."""

    def edit(self, request, edits):
        if request.history.length > 2:
            edits.bias([0], float("nan"))


LOCK = threading.Lock()


class HoldsALock(EditProcessor):
    """A lock cannot be pickled."""

    def edit(self, request, edits):
        with LOCK:
            edits.deny([0])


class ReadsAFile(EditProcessor):
    """A worker does not see the files of the host."""

    def edit(self, request, edits):
        if Path(HERE).exists():
            edits.deny([0])


class SleepsAfterLongHistories(EditProcessor):
    """Longer than a server permits."""

    def edit(self, request, edits):
        if request.history.length > 9000:
            time.sleep(2.1)


class Raises(EditProcessor):
    """With all parameters and histories."""

    def edit(self, request, edits):
        print("about to raise")  # noqa: T201
        raise KeyError("missing")


class RaisesAfterLongHistories(EditProcessor):
    """Has a table with room for fewer ids."""

    def edit(self, request, edits):
        if request.history.length > 5000:
            raise IndexError("the table is full")


class Shakes(CustomLogitProcessor):
    """Draws random numbers without a seed."""

    def __call__(self, logits, custom_param_list=None):
        for row in logits:
            row[0] += random.random()
        return logits


CALLS = 0


class CountsGlobally(EditProcessor):
    """A global outlives the request."""

    def edit(self, request, edits):
        global CALLS
        CALLS += 1
        edits.bias([0], float(CALLS))


class CountsInTheClass(EditProcessor):
    """An attribute of the class outlives the request."""

    calls = 0

    def edit(self, request, edits):
        type(self).calls += 1
        edits.bias([0], float(self.calls))


class Defect(NamedTuple):
    """A processor, parameters that it accepts, the law that it breaks, and a part of the message."""

    processor: Any
    params: dict[str, Any]
    law: str
    message: str


DEFECTS = (
    Defect(SleepsAfterLongHistories, {}, "time", "the limit is 2 s"),
    Defect(Raises, {}, "runs", "Output of the processor:\nabout to raise"),
    Defect(RaisesAfterLongHistories, {}, "runs", "repeated to 10000 ids"),
    Defect(Shakes, {}, "deterministic", "`row[0] += random.random()`: random.random() differs"),
    Defect(CountsGlobally, {}, "deterministic", "`CALLS += 1`: a call changes a variable"),
    Defect(CountsInTheClass, {}, "deterministic", "`type(self).calls += 1`: a call changes the class"),
    Defect(CountsInAdvance, {}, "start", "after `start`"),
    Defect(ForgetsToAdvance, {}, "start", "after `advance`"),
    Defect(CountsEdits, {}, "start", "the logit of id 0"),
    Defect(RewindsNothing, {}, "rewind", "after `rewind`"),
    Defect(RemembersOnTheInstance, {}, "batch", "in the batch"),
    Defect(SortsItsBatch, {}, "batch", "in the batch"),
    Defect(NormalizesTheBatch, {}, "batch", "alone"),
    Defect(ChecksNothing, {"token_ids": [1]}, "params", "without 'token_ids'"),
    Defect(ChecksTooLittle, {"period": 2}, "params", "'period' is 0"),
    Defect(RefusesWithTypeError, {"factor": 1.0}, "params", "KeyError"),
    Defect(DeniesTheNextId, {}, "vocabulary", "DENY of token id 64"),
    Defect(ReturnsFewerIds, {}, "vocabulary", "shape [1, 64]"),
    Defect(MultipliesByZero, {"factor": 0.0}, "nan", "returned NaN"),
    Defect(BiasesByInfinity, {}, "nan", "values must be finite"),
    Defect(HoldsALock, {}, "pickle", "LOCK"),
    Defect(ReadsAFile, {}, "worker", "in a worker"),
)
