from __future__ import annotations

import subprocess
import sys

import pytest

import logitport_builtins
from logitport.processors import EditProcessor
from logitport_builtins import BUILTIN_EDITS, BUILTIN_PROGRAMS
from logitport_builtins.programs.__main__ import write
from logitport_builtins.programs.builtin_programs import FOLDER, SUFFIX
from logitport_programs.program import Program
from logitport_programs.verifier import verify

PUBLIC = """
    BUILTINS BUILTIN_EDITS BUILTIN_PROGRAMS add_tokenizers configure remove_tokenizers
    DisallowedTokens ThinkingBudget NoRepeatNGram Grammar BadWords BannedStrings ForcePrefix StopOn Dry FrequencyPenalty
    GreenList GreenListDetector LogitBias LoopGuard MinTokens PresencePenalty Epsilon Eta MinP RepetitionPenalty
    Temperature TopK TopP TypicalP
    DisallowedTokensLogitsProcessor ThinkingBudgetLogitProcessor Qwen3ThinkingBudgetLogitProcessor
    DeepSeekR1ThinkingBudgetLogitProcessor Glm4MoeThinkingBudgetLogitProcessor InklingThinkingBudgetLogitProcessor
    DeepseekOCRNoRepeatNGramLogitProcessor
"""


def test_public_names():
    assert logitport_builtins.__all__ == PUBLIC.split()
    assert all(hasattr(logitport_builtins, name) for name in logitport_builtins.__all__)


def test_every_builtin_is_logits_free_or_a_program():
    assert logitport_builtins.BUILTINS == {**logitport_builtins.BUILTIN_EDITS, **logitport_builtins.BUILTIN_PROGRAMS}
    assert list(logitport_builtins.BUILTIN_EDITS) == [
        *("disallowed_tokens", "thinking_budget", "no_repeat_ngram", "grammar"),
        *("bad_words", "banned_strings", "force_prefix", "stop_on"),
        *("dry", "frequency_penalty", "green_list", "logit_bias", "loop_guard", "min_tokens", "presence_penalty"),
    ]
    for builtin in logitport_builtins.BUILTIN_EDITS.values():
        assert issubclass(builtin, EditProcessor)
        assert builtin.validate_params.__func__ is not EditProcessor.validate_params.__func__


def test_the_import_and_the_programs_load_neither_torch_nor_the_server():
    code = "import sys, logitport_builtins as ours; dict(ours.BUILTIN_PROGRAMS); "
    code += "print({'torch', 'logitport_server'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


NAMES = [
    *("epsilon", "eta", "min_p", "repetition_penalty"),
    *("temperature", "top_k", "top_p", "typical_p"),
]


def test_each_program_is_read_from_its_file():
    assert list(BUILTIN_PROGRAMS) == NAMES
    assert not BUILTIN_PROGRAMS.keys() & BUILTIN_EDITS.keys()
    for name, program in BUILTIN_PROGRAMS.items():
        assert isinstance(program, Program)
        assert program is BUILTIN_PROGRAMS.get(name)  # read once
        assert program.to_bytes() == FOLDER.joinpath(name + SUFFIX).read_bytes()
        verify(program)
    assert {file.name for file in FOLDER.iterdir() if file.name.endswith(SUFFIX)} == {name + SUFFIX for name in NAMES}
    assert "grammar" not in BUILTIN_PROGRAMS
    with pytest.raises(KeyError):
        BUILTIN_PROGRAMS["grammar"]


@pytest.mark.slow
def test_the_classes_are_captured_as_the_files(tmp_path):
    """After a change to a class, run `make builtin-programs`."""
    for file in write(tmp_path):
        assert file.read_bytes() == FOLDER.joinpath(file.name).read_bytes(), file.name
