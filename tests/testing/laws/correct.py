"""Processors of all kinds that obey the laws."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch

from logitport import CustomLogitProcessor, EditProcessor, Float, InvalidArgument, TensorProcessor
from logitport.dialects import InDialect
from logitport_builtins import BUILTIN_PROGRAMS, DisallowedTokens
from tests.shipped_processors import CountsCalls


class DeniesSeen(EditProcessor):
    """Denies the ids of the output; has state, and a fast `rewind`."""

    @classmethod
    def validate_params(cls, params):
        if set(params) - {"allowed"} or not isinstance(params.get("allowed", []), list):
            raise InvalidArgument("allowed must be a list of ids")
        if any(type(token_id) is not int for token_id in params.get("allowed", [])):
            raise InvalidArgument("allowed must be a list of ids")

    def start(self, request):
        request.state = request.history.output_token_ids.tolist()

    def advance(self, request, token_id):
        request.state.append(token_id)

    def rewind(self, request):
        del request.state[len(request.history.output_token_ids) :]

    def edit(self, request, edits):
        edits.deny(sorted(set(request.state) - set(request.params.get("allowed", []))))


class Sharpens(CustomLogitProcessor):
    """Reads logits, without state."""

    @classmethod
    def validate_params(cls, params):
        if type(params.get("alpha")) is not float or params["alpha"] <= 0:
            raise InvalidArgument("alpha must be a number above 0")

    def __call__(self, logits, custom_param_list=None):
        return logits * torch.tensor([[params["alpha"]] for params in custom_param_list])


class Cools(TensorProcessor):
    """Becomes a program."""

    params: ClassVar = {"factor": Float(ge=0.5, le=2.0)}

    def process(self, logits, params, history):
        return logits * params.factor[:, None]


class Boosts:
    """For transformers, with a parameter of the constructor."""

    def __init__(self, token_id: int, by: float = 1.0):
        if type(token_id) is not int or not 0 <= token_id < 64 or type(by) is not float:
            raise ValueError("token_id must be an id, and by a number")
        self.token_id, self.by = token_id, by

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        scores[:, self.token_id] += self.by
        return scores


def avoids_the_last(input_ids, scores):
    """For transformers, a function."""
    if input_ids.shape[1]:
        scores = scores.clone()
        scores[:, input_ids[0, -1]] = -torch.inf
    return scores


def denies_outputs(output_ids, logits):
    """For vLLM, a function of one request."""
    logits[list(output_ids)] = -torch.inf
    return logits


class BansById:
    """For vLLM's first runner: follows a batch."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.outputs = {}

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.outputs.pop(index, None)
        for index, _, _, output in batch_update.added:
            self.outputs[index] = output
        for source, target, direction in batch_update.moved:
            moved = self.outputs.pop(source)
            if direction.name == "SWAP":
                self.outputs[source] = self.outputs[target]
            self.outputs[target] = moved

    def apply(self, logits):
        for index, output in self.outputs.items():
            logits[index, output[-1:]] = -torch.inf
        return logits


class BansBySlot:
    """For vLLM's second runner."""

    def __init__(self, vllm_config, req_states):
        self.states = req_states

    def add_request(self, req_idx, sampling_params):
        return True

    def apply(self, logits, ctx):
        for row, (slot, position) in enumerate(zip(ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist(), strict=True)):
            if position >= 0:
                logits[row, int(self.states.all_token_ids.gpu[slot, position])] = -torch.inf
        return logits


class BansForDynamo:
    """For NVIDIA Dynamo."""

    def __call__(self, input_ids, logits):
        if len(input_ids):
            logits[input_ids[-1]] = -torch.inf


class Correct(NamedTuple):
    """A processor, and parameters that it accepts."""

    processor: Any
    params: dict[str, Any]


CORRECT = {
    "edits": Correct(DeniesSeen, {"allowed": [1, 2]}),
    "an instance": Correct(DeniesSeen(), {}),
    "SGLang": Correct(Sharpens, {"alpha": 2.0}),
    "SGLang with state": Correct(CountsCalls, {}),
    "TensorProcessor": Correct(Cools, {"factor": 1.5}),
    "a transformers class": Correct(Boosts, {"token_id": 3}),
    "a transformers instance": Correct(Boosts(5, 2.0), {}),
    "a transformers function": Correct(avoids_the_last, {}),
    "a vLLM function": Correct(denies_outputs, {}),
    "vLLM's batches": Correct(BansById, {}),
    "vLLM's slots": Correct(InDialect(BansBySlot, "vllm_v2"), {}),
    "Dynamo": Correct(BansForDynamo, {}),
    "a program": Correct(BUILTIN_PROGRAMS["top_k"], {"top_k": 3}),
    "a built-in's class": Correct(DisallowedTokens, {"token_ids": [1, 2]}),
    "a built-in": Correct("no_repeat_ngram", {"ngram_size": 2}),
    "a payload": Correct(Sharpens.to_str(), {"alpha": 2.0}),
}
