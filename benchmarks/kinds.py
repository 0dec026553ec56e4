"""The kinds of processors, each as logitport's class and as SGLang's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from logitport import CustomLogitProcessor, EditProcessor, EditRequest, RowEdits
from logitport_builtins import DisallowedTokens, NoRepeatNGram, ThinkingBudget

# Ids with a meaning; all others are drawn at random. The same in every vocabulary, so that its size can vary.
START, END, NEWLINE, FIRST_ORDINARY = 0, 1, 2, 3

NEVER_USED_UP = 1 << 30
WHOLE_HISTORY = 1 << 30


@dataclass(frozen=True, eq=False)
class Kind:
    """One processor with its parameters; compared by identity.

    Attributes:
        name: name in the tables.
        params: the same for both sides.
        ours: logitport's class.
        theirs: SGLang's class, from its module `sglang.srt.sampling.custom_logit_processor`.
    """

    name: str
    params: Mapping[str, Any]
    ours: type[CustomLogitProcessor]
    theirs: Callable[[ModuleType], type]


def _their_thinking_budget(sglang: ModuleType) -> type:
    ids = {"THINKING_START_TOKEN_ID": START, "THINKING_END_TOKEN_ID": END, "NEW_LINE_TOKEN_ID": NEWLINE}
    return type("ThinkingBudget", (sglang.ThinkingBudgetLogitProcessor,), ids)


def _thinking(budget: int) -> Mapping[str, Any]:
    tags = {"thinking_start_ids": [START], "thinking_end_ids": [END], "newline_id": NEWLINE}
    return {"thinking_budget": budget, **tags}


THINKING = Kind("thinking budget, not used up", _thinking(NEVER_USED_UP), ThinkingBudget, _their_thinking_budget)
FORCED = Kind("thinking budget, used up: whole rows filled", _thinking(0), ThinkingBudget, _their_thinking_budget)
NGRAM = Kind(
    "no n-gram of 3 twice, whole history",
    {"ngram_size": 3, "window_size": WHOLE_HISTORY},
    NoRepeatNGram,
    lambda sglang: sglang.DeepseekOCRNoRepeatNGramLogitProcessor,
)
BAN = Kind(
    "ban list of 100",
    {"token_ids": list(range(FIRST_ORDINARY, 30_000, 300))},
    DisallowedTokens,
    lambda sglang: sglang.DisallowedTokensLogitsProcessor,
)


class Temperature(CustomLogitProcessor):
    """Reads and writes every logit of its rows, in place, and does not wait for a GPU."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        temperatures = torch.tensor(
            [[params["temperature"]] for params in custom_param_list or ()], pin_memory=logits.is_cuda
        )
        return logits.div_(temperatures.to(logits.device, non_blocking=True))


TEMPERATURE = Kind(
    "divide by a temperature",
    {"temperature": 1.25},
    Temperature,
    lambda sglang: type("Temperature", (sglang.CustomLogitProcessor,), {"__call__": Temperature.__call__}),
)


class Ban(EditProcessor):
    """A shipped, logits-free ban list."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny(request.params["token_ids"])


class BanInLogits(CustomLogitProcessor):
    """The same ban list with SGLang's interface."""

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, params in enumerate(custom_param_list or ()):
            logits[row, params["token_ids"]] = -float("inf")
        return logits


def distinct(count: int) -> tuple[Kind, ...]:
    """Shipped processors, each with its own class."""
    return tuple(
        Kind(
            f"shipped processor {number}",
            BAN.params,
            type(f"Ban{number}", (Ban,), {"__module__": __name__, "__doc__": f"Number {number}."}),
            lambda sglang: type("Ban", (sglang.CustomLogitProcessor,), {"__call__": BanInLogits.__call__}),
        )
        for number in range(count)
    )
