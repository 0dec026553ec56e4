"""`thinking_budget`: a limit on the length of a reasoning model's thinking."""

from logitport_builtins.thinking_budget.limits import NO_LIMIT, PRESETS, ThinkingLimit, ThinkingTags
from logitport_builtins.thinking_budget.processor import ThinkingBudget

__all__ = ["NO_LIMIT", "PRESETS", "ThinkingBudget", "ThinkingLimit", "ThinkingTags"]
