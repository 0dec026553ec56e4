"""`thinking_budget`: a limit on the length of a reasoning model's thinking."""

from logitport_builtins.thinking_budget.processor import ThinkingBudget
from logitport_builtins.thinking_budget.thinking_limit import NO_LIMIT, PRESETS, ThinkingLimit, ThinkingTags

__all__ = ["NO_LIMIT", "PRESETS", "ThinkingBudget", "ThinkingLimit", "ThinkingTags"]
