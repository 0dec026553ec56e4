"""Stub of vLLM's module of this name: the fields of vLLM 0.33 with their defaults, without its checks.

A session's sampling parameters come from an engine that has already checked them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

_GREEDY_BELOW = 1e-5
_LOWEST_TEMPERATURE = 1e-2


class SamplingType(IntEnum):
    """Methods of choosing the next token."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class RequestOutputKind(Enum):
    """Which part of the output is returned at each step."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    """Constraints on the form of a request's output."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


@dataclass
class RepetitionDetectionParams:
    """Limits on repetition that end a request."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


@dataclass
class SamplingParams:
    """A request's sampling parameters; `extra_args` has the parameters of its processors."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None
    _eos_token_id: int | None = field(default=None, init=False)
    _all_stop_token_ids: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        if 0 < self.temperature < _LOWEST_TEMPERATURE:
            self.temperature = _LOWEST_TEMPERATURE
        self.seed = None if self.seed == -1 else self.seed
        self.stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        self.stop_token_ids = list(dict.fromkeys(self.stop_token_ids or ()))
        self.bad_words = list(dict.fromkeys(self.bad_words or ()))
        if self.temperature < _GREEDY_BELOW:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        self._all_stop_token_ids.update(self.stop_token_ids)

    @property
    def sampling_type(self) -> SamplingType:
        """The method of choosing the next token."""
        if self.temperature < _GREEDY_BELOW:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def eos_token_id(self) -> int | None:
        """The first of the ids that end this request; None if there is none, or it is unknown."""
        return self._eos_token_id

    @property
    def all_stop_token_ids(self) -> set[int]:
        """All ids that end this request, including the end of a sequence."""
        return self._all_stop_token_ids

    def update_from_generation_config(self, generation_config: dict[str, Any], eos_token_id: int | None = None) -> None:
        """Set the ids that end a sequence.

        Args:
            generation_config: its "eos_token_id" is one id or several; it may be missing.
            eos_token_id: the first of them.
        """
        configured = generation_config.get("eos_token_id", ())
        others = {configured} if isinstance(configured, int) else set(configured)
        if not self.ignore_eos:
            self._eos_token_id = eos_token_id
        if eos_token_id is not None:
            self._all_stop_token_ids.add(eos_token_id)
            others.discard(eos_token_id)
        self._all_stop_token_ids |= others
        if others and not self.ignore_eos:
            self.stop_token_ids = list(others.union(self.stop_token_ids or ()))

    def clone(self) -> SamplingParams:
        """Deep-copy the parameters; a shallow copy if `skip_clone` is set."""
        return copy.copy(self) if self.skip_clone else copy.deepcopy(self)
