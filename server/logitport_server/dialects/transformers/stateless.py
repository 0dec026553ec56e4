"""The processors of transformers that keep no state between calls and process each row separately.

One instance of such a processor serves all requests with the same parameters, many rows in one call. Any other
processor may keep state by batch position, so each request gets its own instance and call. Source: transformers 5.23.0.
"""

from __future__ import annotations

from typing import Any

_MODULE = "transformers.generation.logits_process"

# They ignore the history, so one call may take rows with histories of different lengths.
_OF_SCORES = {
    "BarkEosPrioritizerLogitsProcessor",
    "EpsilonLogitsWarper",
    "EtaLogitsWarper",
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "MinPLogitsWarper",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
    "TopHLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
    "TypicalLogitsWarper",
}

# They read the history, or its length.
_OF_HISTORY = {
    "AlternatingCodebooksLogitsProcessor",
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",  # derives from SequenceBiasLogitsProcessor
    "NoRepeatNGramLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",  # with prompt_ignore_length it refuses a call with several rows
    "SequenceBiasLogitsProcessor",  # the tensors that its first call stores are its arguments in another form
    "SuppressTokensAtBeginLogitsProcessor",
    "WatermarkLogitsProcessor",  # reseeds its generator for each row, from that row's history
    "WhisperTimeStampLogitsProcessor",
}

# Excluded although they are immutable: EncoderRepetitionPenaltyLogitsProcessor and
# EncoderNoRepeatNGramLogitsProcessor match row i with the i-th prompt of their constructor, and
# PrefixConstrainedLogitsProcessor passes the row number to a function.


def is_stateless(processor: object) -> bool:
    """Whether the processor, or every one in a LogitsProcessorList, is exactly of a class above; no subclasses."""
    return all(_is(one, _OF_SCORES | _OF_HISTORY) for one in _parts(processor))


def takes_any_history(processor: object) -> bool:
    """Whether the processor, or every one in a LogitsProcessorList, ignores the history."""
    return all(_is(one, _OF_SCORES) for one in _parts(processor))


def _parts(processor: object) -> list[Any]:
    return list(processor) if _is(processor, {"LogitsProcessorList"}) else [processor]  # type: ignore[call-overload]


def _is(processor: object, names: set[str]) -> bool:
    return type(processor).__module__ == _MODULE and type(processor).__name__ in names
