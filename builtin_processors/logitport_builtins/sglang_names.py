"""SGLang's processors under SGLang's names, which read parameters as SGLang does.

A payload that refers to `sglang.srt.sampling.custom_logit_processor.Qwen3ThinkingBudgetLogitProcessor` loads the class
of that name here. Unknown keys are ignored, because in SGLang one dict serves the whole request. A parameter with an
unusable value disables the processor where SGLang does the same. The built-ins under their own names reject both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport.payload.wire_names import SGLANG_MODULE, wire_name
from logitport_builtins.disallowed_tokens import DisallowedTokens
from logitport_builtins.no_repeat_ngram import NGramRule, NoRepeatNGram
from logitport_builtins.thinking_budget import NO_LIMIT, PRESETS, ThinkingBudget, ThinkingLimit, ThinkingTags

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from logitport.processors import EditRequest

_DENY_NOTHING = NGramRule(size=1, window=0, whitelist=frozenset())


@wire_name(SGLANG_MODULE, "DisallowedTokensLogitsProcessor")
class DisallowedTokensLogitsProcessor(DisallowedTokens):
    """`disallowed_tokens`. A request without `token_ids` is an error in SGLang, and here."""

    @classmethod
    def token_ids(cls, params: Mapping[str, Any]) -> NDArray[np.int32]:
        """Read `token_ids` like the base class, and ignore other keys."""
        return super().token_ids({"token_ids": params.get("token_ids")})


@wire_name(SGLANG_MODULE, "ThinkingBudgetLogitProcessor")
class ThinkingBudgetLogitProcessor(ThinkingBudget):
    """`thinking_budget` for a model; a subclass sets the model's ids.

    A `thinking_budget` that is absent, negative or not an integer means no limit.
    """

    THINKING_START_TOKEN_ID: int
    THINKING_END_TOKEN_ID: int
    NEW_LINE_TOKEN_ID: int | None

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Accept any parameters."""

    def limit(self, request: EditRequest) -> ThinkingLimit:
        """The request's budget, with the tags of the class."""
        budget = request.params.get("thinking_budget")
        if not isinstance(budget, int) or budget < 0:
            budget = NO_LIMIT
        tags = ThinkingTags((self.THINKING_START_TOKEN_ID,), (self.THINKING_END_TOKEN_ID,), self.NEW_LINE_TOKEN_ID)
        return ThinkingLimit(budget, tags)


@wire_name(SGLANG_MODULE, "Glm4MoeThinkingBudgetLogitProcessor")
class Glm4MoeThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """For GLM-4.5, GLM-4.6, GLM-4.5V and GLM-4.6V: the preset `glm4_moe`."""

    THINKING_START_TOKEN_ID = PRESETS["glm4_moe"].start[0]
    THINKING_END_TOKEN_ID = PRESETS["glm4_moe"].end[0]
    NEW_LINE_TOKEN_ID = PRESETS["glm4_moe"].newline


@wire_name(SGLANG_MODULE, "Qwen3ThinkingBudgetLogitProcessor")
class Qwen3ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """For Qwen3: the preset `qwen3`."""

    THINKING_START_TOKEN_ID = PRESETS["qwen3"].start[0]
    THINKING_END_TOKEN_ID = PRESETS["qwen3"].end[0]
    NEW_LINE_TOKEN_ID = PRESETS["qwen3"].newline


@wire_name(SGLANG_MODULE, "DeepSeekR1ThinkingBudgetLogitProcessor")
class DeepSeekR1ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """For DeepSeek-R1: the preset `deepseek_r1`."""

    THINKING_START_TOKEN_ID = PRESETS["deepseek_r1"].start[0]
    THINKING_END_TOKEN_ID = PRESETS["deepseek_r1"].end[0]
    NEW_LINE_TOKEN_ID = PRESETS["deepseek_r1"].newline


@wire_name(SGLANG_MODULE, "InklingThinkingBudgetLogitProcessor")
class InklingThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """For Inkling: the preset `inkling`."""

    THINKING_START_TOKEN_ID = PRESETS["inkling"].start[0]
    THINKING_END_TOKEN_ID = PRESETS["inkling"].end[0]
    NEW_LINE_TOKEN_ID = PRESETS["inkling"].newline


@wire_name(SGLANG_MODULE, "DeepseekOCRNoRepeatNGramLogitProcessor")
class DeepseekOCRNoRepeatNGramLogitProcessor(NoRepeatNGram):
    """`no_repeat_ngram`, for numbers of any type that `int` converts.

    A size or window that is absent, below 1 or not a number denies nothing. A whitelist with a value that is not a
    number is treated as empty.
    """

    @classmethod
    def rule(cls, params: Mapping[str, Any]) -> NGramRule:
        """The rule that `params` describe; any parameters are accepted."""
        try:
            size, window = int(params.get("ngram_size") or 0), int(params.get("window_size") or 0)
        except (TypeError, ValueError, OverflowError):
            return _DENY_NOTHING
        if size <= 0 or window <= 0:
            return _DENY_NOTHING
        try:
            whitelist = frozenset(int(token_id) for token_id in params.get("whitelist_token_ids") or ())
        except (TypeError, ValueError, OverflowError):
            whitelist = frozenset()
        return NGramRule(size, window, whitelist)
