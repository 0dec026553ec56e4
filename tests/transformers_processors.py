"""Every processor of transformers: its configuration in tests, or why it cannot process single rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import transformers

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 48
_GENERATION = "transformers.generation.logits_process"
_MODELS = "transformers.models"


def allow_by_last(batch_id: int, ids: torch.Tensor) -> list[int]:
    """The function for PrefixConstrainedLogitsProcessor: some ids that depend on the history."""
    return [(int(ids.sum()) + step) % VOCAB for step in (1, 5, 9)]


_WHISPER = SimpleNamespace(no_timestamps_token_id=30, eos_token_id=5, bos_token_id=4, max_initial_timestamp_index=6)


@dataclass(frozen=True)
class Case:
    """One configuration.

    Attributes:
        name: name of the class.
        params: arguments that JSON can hold.
        more: arguments that JSON cannot hold; if there are any, an instance is shipped.
        module: module of the class.
    """

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    module: str = _GENERATION

    @property
    def cls(self) -> type[Any]:
        found: type[Any] = getattr(import_module(self.module), self.name)
        return found

    @property
    def shipped(self) -> tuple[Any, dict[str, Any]]:
        """The processor and its parameters for a request."""
        return (self.native(), {}) if self.more else (self.cls, self.params)

    def native(self) -> Any:
        """Create an instance directly."""
        arguments = {**self.params, **self.more}
        if "encoder_input_ids" in arguments:
            arguments["encoder_input_ids"] = torch.tensor(arguments["encoder_input_ids"])
        if self.name in ("WatermarkLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"):
            arguments["device"] = "cpu"
        return self.cls(**arguments)


_SYNTH_ID = {"ngram_len": 3, "keys": [7, 9], "sampling_table_size": 64, "sampling_table_seed": 1}

CASES = [
    Case("AlternatingCodebooksLogitsProcessor", {"input_start_len": 2, "semantic_vocab_size": 9, "codebook_size": 20}),
    Case("BarkEosPrioritizerLogitsProcessor", {"eos_token_id": [2, 3], "min_eos_p": 0.03}),
    Case("EncoderNoRepeatNGramLogitsProcessor", {"encoder_ngram_size": 2, "encoder_input_ids": [[1, 2, 3, 1, 4]]}),
    Case("EncoderRepetitionPenaltyLogitsProcessor", {"penalty": 1.5, "encoder_input_ids": [[1, 2, 3]]}),
    Case("EpsilonLogitsWarper", {"epsilon": 0.02}),
    Case("EtaLogitsWarper", {"epsilon": 0.03}),
    Case(
        "ExponentialDecayLengthPenalty",
        {"exponential_decay_length_penalty": [1, 1.5], "eos_token_id": 2, "input_ids_seq_length": 2},
    ),
    Case("ForcedBOSTokenLogitsProcessor", {"bos_token_id": 3}),
    Case("ForcedEOSTokenLogitsProcessor", {"max_length": 6, "eos_token_id": [2, 3]}),
    Case("InfNanRemoveLogitsProcessor"),
    Case("LogitNormalization"),
    Case("MinLengthLogitsProcessor", {"min_length": 5, "eos_token_id": [2, 3]}),
    Case("MinNewTokensLengthLogitsProcessor", {"prompt_length_to_skip": 2, "min_new_tokens": 3, "eos_token_id": 2}),
    Case("MinPLogitsWarper", {"min_p": 0.1}),
    Case("NoBadWordsLogitsProcessor", {"bad_words_ids": [[1, 2], [4], [3, 1, 2]], "eos_token_id": 2}),
    Case("NoRepeatNGramLogitsProcessor", {"ngram_size": 2}),
    Case("PrefixConstrainedLogitsProcessor", {"num_beams": 1}, {"prefix_allowed_tokens_fn": allow_by_last}),
    Case("RepetitionPenaltyLogitsProcessor", {"penalty": 1.3}),
    Case("RepetitionPenaltyLogitsProcessor", {"penalty": 1.3, "prompt_ignore_length": 2}),
    Case("SequenceBiasLogitsProcessor", {"sequence_bias": [[[1, 2], -3.0], [[5], 2.0], [[2, 2, 1], 4.0]]}),
    Case("SuppressTokensAtBeginLogitsProcessor", {"begin_suppress_tokens": [1, 2], "begin_index": 3}),
    Case("SuppressTokensLogitsProcessor", {"suppress_tokens": [1, 2]}),
    Case("SynthIDTextWatermarkLogitsProcessor", {**_SYNTH_ID, "context_history_size": 4}),
    Case("TemperatureLogitsWarper", {"temperature": 0.7}),
    Case("TopHLogitsWarper", {"top_h": 0.4}),
    Case("TopKLogitsWarper", {"top_k": 5}),
    Case("TopPLogitsWarper", {"top_p": 0.7}),
    Case("TypicalLogitsWarper", {"mass": 0.6}),
    Case("WatermarkLogitsProcessor", {"vocab_size": VOCAB}),
    Case("WatermarkLogitsProcessor", {"vocab_size": VOCAB, "seeding_scheme": "selfhash", "context_width": 2}),
    Case("WhisperTimeStampLogitsProcessor", {"begin_index": 2}, {"generate_config": _WHISPER}),
    Case(
        "UnlimitedOcrSlidingWindowNoRepeatNgramLogitsProcessor",
        {"ngram_size": 2, "window_size": 4},
        module=f"{_MODELS}.unlimited_ocr.generation_unlimited_ocr",
    ),
    Case(
        "VibeVoiceTokenConstraintProcessor",
        {"valid_token_ids": [1, 2, 3], "vocab_size": VOCAB},
        module=f"{_MODELS}.vibevoice.generation_vibevoice",
    ),
]

_TWO_ROWS = "needs two rows per request, the second from a pass without the prompt"
_CHANNELS = "needs a row for each audio channel of a request at once"
_OF_CONTINUOUS_BATCHING = "replaces another processor in transformers' continuous batching, and takes no ids"

NOT_OF_A_ROW = {
    "ClassifierFreeGuidanceLogitsProcessor": _TWO_ROWS,
    "DiaClassifierFreeGuidanceLogitsProcessor": _TWO_ROWS,
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "runs the model",
    "WhisperNoSpeechDetection": "runs the model, and leaves the scores as they are",
    "DiaEOSChannelFilterLogitsProcessor": _CHANNELS,
    "DiaEOSDelayPatternLogitsProcessor": _CHANNELS,
    "HiggsAudioV2DelayPatternLogitsProcessor": _CHANNELS,
    "LinearTemperatureScheduleLogitsProcessor": "needs the step of a diffusion as a third argument",
    "ContinuousBatchingTemperatureLogitsWarper": _OF_CONTINUOUS_BATCHING,
    "ContinuousBatchingTopKLogitsWarper": _OF_CONTINUOUS_BATCHING,
    "ContinuousBatchingTopPLogitsWarper": _OF_CONTINUOUS_BATCHING,
}


def names_in_transformers() -> set[str]:
    """The processor classes in the source of the installed transformers, without base classes."""
    bases = {"LogitsProcessor", "ContinuousBatchingLogitsProcessor"}
    classes, found = dict(_classes()), set(bases)
    while more := {name for name, parents in classes.items() if parents & found} - found:
        found |= more
    return found - bases


def _classes() -> Iterator[tuple[str, set[str]]]:
    folder = Path(transformers.__path__[0])
    for file in (*folder.glob("generation/**/*.py"), *folder.glob("models/*/generation_*.py")):
        for name, parents in re.findall(r"^class (\w+)\(([^)]*)\):", file.read_text("utf-8"), re.MULTILINE):
            yield name, {parent.strip().rpartition(".")[2] for parent in parents.split(",")}
