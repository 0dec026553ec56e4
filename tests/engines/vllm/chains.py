"""Chains that tests of vLLM run, through the service and in vLLM's process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from logitport import CustomLogitProcessor
from logitport_builtins import BUILTINS
from tests.engines.checkpoint import VOCAB_SIZE
from tests.engines.hostile_processors import SleepsInCheck
from tests.shipped_processors import ForcesCallCount, TiltByLastId

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

Chain = list[tuple[str, dict[str, Any]]]


class RaisesAfterOutputs(CustomLogitProcessor):
    """Raises once a request has this many output ids."""

    def __call__(self, logits, custom_param_list=None):
        for params in custom_param_list:
            if len(params["__req__"].output_ids) >= params["after"]:
                raise RuntimeError("this one fails on purpose")
        return logits


CLASSES: dict[str, type[CustomLogitProcessor]] = {
    kind.__name__: kind for kind in (TiltByLastId, ForcesCallCount, RaisesAfterOutputs, SleepsInCheck)
}
SHIPPED = {name: kind.to_str() for name, kind in CLASSES.items()}

CHAINS: dict[str, Chain] = {
    "disallowed_tokens": [("disallowed_tokens", {"token_ids": list(range(2, VOCAB_SIZE, 3))})],
    "no_repeat_ngram": [("no_repeat_ngram", {"ngram_size": 1, "window_size": 12})],
    "thinking_budget": [
        (
            "thinking_budget",
            {"thinking_budget": 4, "thinking_start_ids": [7], "thinking_end_ids": [8, 9], "newline_id": 10},
        )
    ],
    "reads logits": [("TiltByLastId", {"by": 4.0})],
}
CHAINS["all"] = [entry for name in ("reads logits", "disallowed_tokens", "no_repeat_ngram") for entry in CHAINS[name]]


def extra_args_of(chain: Chain) -> dict[str, Any]:
    """Return the `extra_args` that request the chain from the service."""
    return {"logitport": [[SHIPPED.get(name, name), params] for name, params in chain]}


def in_process(chain: Chain) -> Callable[[list[int], list[int], torch.Tensor], torch.Tensor]:
    """Return the same chain without a service, for one request: (prompt, output, float[vocab_size]) to such a row."""
    processors = [((BUILTINS.get(name) or CLASSES[name])(), dict(params)) for name, params in chain]

    def process(prompt_ids: list[int], output_ids: list[int], row: torch.Tensor) -> torch.Tensor:
        rows = row[None]
        for processor, params in processors:
            params["__req__"] = SimpleNamespace(origin_input_ids=prompt_ids, output_ids=output_ids)
            rows = processor(rows, [params])
        return rows[0]

    return process
