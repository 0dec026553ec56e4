"""Processors that ship with logitport. All are logits-free: their edits depend only on the token history."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from logitport_builtins.configuration import configure
from logitport_builtins.disallowed_tokens import DisallowedTokens
from logitport_builtins.grammar import Grammar
from logitport_builtins.no_repeat_ngram import NoRepeatNGram
from logitport_builtins.sglang_names import (
    DeepseekOCRNoRepeatNGramLogitProcessor,
    DeepSeekR1ThinkingBudgetLogitProcessor,
    DisallowedTokensLogitsProcessor,
    Glm4MoeThinkingBudgetLogitProcessor,
    InklingThinkingBudgetLogitProcessor,
    Qwen3ThinkingBudgetLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from logitport_builtins.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.processors import EditProcessor

__all__ = [
    "BUILTINS",
    "configure",
    "DisallowedTokens",
    "ThinkingBudget",
    "NoRepeatNGram",
    "Grammar",
    "DisallowedTokensLogitsProcessor",
    "ThinkingBudgetLogitProcessor",
    "Qwen3ThinkingBudgetLogitProcessor",
    "DeepSeekR1ThinkingBudgetLogitProcessor",
    "Glm4MoeThinkingBudgetLogitProcessor",
    "InklingThinkingBudgetLogitProcessor",
    "DeepseekOCRNoRepeatNGramLogitProcessor",
]

# By the names that requests use. For a class with a name of its own, the SDK sends the name instead of the class.
BUILTINS: Mapping[str, type[EditProcessor]] = MappingProxyType(
    {
        DisallowedTokens.builtin_name: DisallowedTokens,
        ThinkingBudget.builtin_name: ThinkingBudget,
        NoRepeatNGram.builtin_name: NoRepeatNGram,
        Grammar.builtin_name: Grammar,
    }
)
