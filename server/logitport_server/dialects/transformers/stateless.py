"""Which of transformers' own processors keep nothing from one call to the next, and process each row by itself.

One instance of such serves all requests that configure it alike, many rows in one call. Every other processor may keep
state by batch position, and gets an instance and a call for each request. Read in transformers 5.23.0.
"""

from __future__ import annotations

from typing import Any

_MODULE = "transformers.generation.logits_process"

# They take no notice of the history, so that rows of any length go together.
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

# They look at the history, or at its length.
_OF_HISTORY = {
    "AlternatingCodebooksLogitsProcessor",
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",  # as SequenceBiasLogitsProcessor
    "NoRepeatNGramLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",  # of several rows with a prompt_ignore_length for one it refuses the call
    "SequenceBiasLogitsProcessor",  # the tensors that its first call leaves are its arguments in another form
    "SuppressTokensAtBeginLogitsProcessor",
    "WatermarkLogitsProcessor",  # seeds its generator anew for each row, from that row's history
    "WhisperTimeStampLogitsProcessor",
}

# Not here, though nothing of theirs changes: EncoderRepetitionPenaltyLogitsProcessor and
# EncoderNoRepeatNGramLogitsProcessor pair rows with the prompts that they were made with, and
# PrefixConstrainedLogitsProcessor hands the row's number to a function.


def is_stateless(processor: object) -> bool:
    """Whether the processor, or every one in a list of them, is one of those above, and none that derives from it."""
    return all(_is(one, _OF_SCORES | _OF_HISTORY) for one in _parts(processor))


def takes_any_history(processor: object) -> bool:
    """Whether the processor, or every one in a list of them, takes no notice of the history."""
    return all(_is(one, _OF_SCORES) for one in _parts(processor))


def _parts(processor: object) -> list[Any]:
    return list(processor) if _is(processor, {"LogitsProcessorList"}) else [processor]  # type: ignore[call-overload]


def _is(processor: object, names: set[str]) -> bool:
    return type(processor).__module__ == _MODULE and type(processor).__name__ in names
