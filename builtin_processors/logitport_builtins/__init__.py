"""Processors that ship with logitport.

The classes in `BUILTIN_EDITS` are logits-free: their edits depend only on the token history. `BUILTIN_PROGRAMS` read
logits.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from logitport_builtins.bad_words import BadWords
from logitport_builtins.by_text import BannedStrings, ForcePrefix, StopOn
from logitport_builtins.configuration import add_tokenizers, configure, remove_tokenizers
from logitport_builtins.disallowed_tokens import DisallowedTokens
from logitport_builtins.dry import Dry
from logitport_builtins.grammar import Grammar
from logitport_builtins.green_list import GreenList, GreenListDetector
from logitport_builtins.logit_bias import LogitBias
from logitport_builtins.loop_guard import LoopGuard
from logitport_builtins.min_tokens import MinTokens
from logitport_builtins.no_repeat_ngram import NoRepeatNGram
from logitport_builtins.penalties import FrequencyPenalty, PresencePenalty
from logitport_builtins.programs import BUILTIN_PROGRAMS
from logitport_builtins.sampling import Epsilon, Eta, MinP, RepetitionPenalty, Temperature, TopK, TopP, TypicalP
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
    from logitport_programs.program import Program

__all__ = [
    "BUILTINS",
    "BUILTIN_EDITS",
    "BUILTIN_PROGRAMS",
    "add_tokenizers",
    "configure",
    "remove_tokenizers",
    "DisallowedTokens",
    "ThinkingBudget",
    "NoRepeatNGram",
    "Grammar",
    "BadWords",
    "BannedStrings",
    "ForcePrefix",
    "StopOn",
    "Dry",
    "FrequencyPenalty",
    "GreenList",
    "GreenListDetector",
    "LogitBias",
    "LoopGuard",
    "MinTokens",
    "PresencePenalty",
    "Epsilon",
    "Eta",
    "MinP",
    "RepetitionPenalty",
    "Temperature",
    "TopK",
    "TopP",
    "TypicalP",
    "DisallowedTokensLogitsProcessor",
    "ThinkingBudgetLogitProcessor",
    "Qwen3ThinkingBudgetLogitProcessor",
    "DeepSeekR1ThinkingBudgetLogitProcessor",
    "Glm4MoeThinkingBudgetLogitProcessor",
    "InklingThinkingBudgetLogitProcessor",
    "DeepseekOCRNoRepeatNGramLogitProcessor",
]

# By the names that requests use. For a class with a name of its own, the SDK sends the name instead of the class.
BUILTIN_EDITS: Mapping[str, type[EditProcessor]] = MappingProxyType(
    {
        builtin.builtin_name: builtin
        for builtin in (
            DisallowedTokens,
            ThinkingBudget,
            NoRepeatNGram,
            Grammar,
            BadWords,
            BannedStrings,
            ForcePrefix,
            StopOn,
            Dry,
            FrequencyPenalty,
            GreenList,
            LogitBias,
            LoopGuard,
            MinTokens,
            PresencePenalty,
        )
    }
)
BUILTINS: Mapping[str, type[EditProcessor] | Program] = MappingProxyType({**BUILTIN_EDITS, **BUILTIN_PROGRAMS})
