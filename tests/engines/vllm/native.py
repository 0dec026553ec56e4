"""logitport's processors inside of vLLM, without logitport's service: what the hook is compared with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from logitport import CustomLogitProcessor
from logitport_builtins import BUILTINS

if TYPE_CHECKING:
    import torch

KEY = "native"


class Tilt(CustomLogitProcessor):
    """Reads logits, keeps nothing: the id sampled last decides which half of the vocabulary gains."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            request = params["__req__"]
            seen = [*request.origin_input_ids, *request.output_ids]
            row[seen[-1] % 2 :: 2] += params["by"]
        return logits


class CountsCalls(CustomLogitProcessor):
    """Writes how often it was called for the request, which no history tells."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            params["calls"] = params.get("calls", 0) + 1
            row[:] = float("-inf")
            row[100 + params["calls"]] = 0.0
        return logits


class Fails(CustomLogitProcessor):
    """Raises once a request has so many output ids."""

    def __call__(self, logits, custom_param_list=None):
        for params in custom_param_list:
            if len(params["__req__"].output_ids) >= params["after"]:
                raise RuntimeError("this one fails on purpose")
        return logits


class Native(AdapterLogitsProcessor):
    """`extra_args={"native": [[processor, parameters], ...]}`, by built-ins' names and those of the classes above."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        chain = [
            (BUILTINS[name]() if name in BUILTINS else globals()[name](), dict(arguments))
            for name, arguments in (params.extra_args or {}).get(KEY, [])
        ]
        if not chain:
            return None

        def process(prompt_ids: list[int], output_ids: list[int], row: torch.Tensor) -> torch.Tensor:
            rows = row[None]
            for processor, arguments in chain:
                arguments["__req__"] = SimpleNamespace(origin_input_ids=prompt_ids, output_ids=output_ids)
                rows = processor(rows, [arguments])
            return rows[0]

        return process
