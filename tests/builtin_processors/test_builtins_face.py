from __future__ import annotations

import subprocess
import sys

import logitport_builtins
from logitport.processors import EditProcessor


def test_public_names():
    assert logitport_builtins.__all__ == [
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
    assert all(hasattr(logitport_builtins, name) for name in logitport_builtins.__all__)


def test_every_builtin_is_logits_free_or_a_program():
    assert logitport_builtins.BUILTINS == {**logitport_builtins.BUILTIN_EDITS, **logitport_builtins.BUILTIN_PROGRAMS}
    assert list(logitport_builtins.BUILTIN_EDITS) == [
        *("disallowed_tokens", "thinking_budget", "no_repeat_ngram", "grammar"),
        *("bad_words", "banned_strings", "force_prefix", "stop_on"),
        *("dry", "frequency_penalty", "green_list", "logit_bias", "min_tokens", "presence_penalty"),
    ]
    for builtin in logitport_builtins.BUILTIN_EDITS.values():
        assert issubclass(builtin, EditProcessor)
        assert builtin.validate_params.__func__ is not EditProcessor.validate_params.__func__


def test_the_import_loads_neither_torch_nor_the_server():
    code = "import sys, logitport_builtins; print({'torch', 'logitport_server'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
