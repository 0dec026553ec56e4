"""The parameters `phase` and `phase_tags`, which every `EditProcessor` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport.core.declared import PHASE_KEYS, refuse_unknown
from logitport.errors import InvalidArgument, LogitportError
from logitport.phases.chat_template import tags_of_tokenizer
from logitport.phases.phase_presets import PHASE_PRESETS
from logitport.phases.phase_tags import ANSWER, PHASES, TOOL_CALL, PhaseTags, thinking_tags
from logitport.tokenizers import operator_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

_AFTER_THINKING = "after_thinking"  # the answer, with calls of tools as parts of it
_CHOICES = (*PHASES[:-1], _AFTER_THINKING)
_LISTS = ("thinking_start_ids", "thinking_end_ids", "tool_call_start_ids", "tool_call_end_ids")
_STARTS = ("answer", "thinking", "either")
_MAX_ID = 2**31 - 1
_MAX_TAG = 64  # ids


@dataclass(frozen=True)
class PhaseChoice:
    """The phase that a processor holds in, by the parameters of a request.

    Attributes:
        phase: a number of `PHASES`; None if the processor holds in all.
        tags: the tags in the parameters; None for those of the operator's tokenizer.
        joins_calls: whether a call of a tool is a part of the answer.
    """

    phase: int | None = None
    tags: PhaseTags | None = None
    joins_calls: bool = False


_ALL_PHASES = PhaseChoice()


def read_phase(params: Mapping[str, Any]) -> tuple[PhaseChoice, Mapping[str, Any]]:
    """Return the choice, and the parameters without it. Raises InvalidArgument if it cannot be used."""
    if PHASE_KEYS[0] not in params and PHASE_KEYS[1] not in params:
        return _ALL_PHASES, params
    phase = params.get("phase")
    if phase is not None and phase not in _CHOICES:
        raise InvalidArgument(f"phase must be one of {', '.join(_CHOICES)}, not {phase!r:.100}")
    tags = None if params.get("phase_tags") is None else _read_tags(params["phase_tags"])
    rest = {key: value for key, value in params.items() if key not in PHASE_KEYS}
    if phase == _AFTER_THINKING:
        return PhaseChoice(ANSWER, tags, joins_calls=True), rest
    return PhaseChoice(None if phase is None else PHASES.index(phase), tags), rest


def tags_for(choice: PhaseChoice, tokenizer_id: str, vocab_size: int) -> PhaseTags:
    """Return the tags of a choice.

    Raises:
        InvalidArgument: the parameters have none, and there are none in the chat template of the operator's tokenizer.
        InvalidArgument: an id of a tag is outside the vocabulary, or the choice is the phase of calls, which no tag
            begins.
        PayloadError: the operator's tokenizer cannot be used.
    """
    tags = choice.tags
    if tags is None:
        try:
            tags = tags_of_tokenizer(operator_tokenizer(tokenizer_id))
        except InvalidArgument as error:
            raise InvalidArgument(
                f"phase: the tags of the model are not known: {error.message}; or set phase_tags to a preset "
                f"({', '.join(PHASE_PRESETS)}) or to an object with thinking_start_ids and thinking_end_ids"
            ) from error
    if (largest := max(tags.ids)) >= vocab_size:
        raise InvalidArgument(
            f"phase_tags: a tag has token id {largest}, but ids must lie in [0, {vocab_size}): check that the tags are "
            "for this model's tokenizer"
        )
    if choice.phase == TOOL_CALL and not any(tag.begins == TOOL_CALL for tag in tags.tags):
        raise InvalidArgument(
            "phase: tool_call never begins, because the tags of the model mark no calls of tools: add "
            "tool_call_start_ids and tool_call_end_ids to phase_tags"
        )
    return tags.without_tool_call() if choice.joins_calls else tags


def known_tags(tokenizer_id: str) -> PhaseTags | None:
    """Return the tags of the operator's tokenizer; None if they are not known."""
    try:
        return tags_of_tokenizer(operator_tokenizer(tokenizer_id))
    except LogitportError:
        return None


def _read_tags(given: Any) -> PhaseTags:
    if isinstance(given, str):
        if given not in PHASE_PRESETS:
            raise InvalidArgument(
                f"phase_tags: unknown preset {given!r:.100}; known presets: {', '.join(PHASE_PRESETS)}"
            )
        return PHASE_PRESETS[given]
    if not isinstance(given, dict):
        raise InvalidArgument(f"phase_tags must be the name of a preset, or an object, not {given!r:.100}")
    try:
        refuse_unknown((*_LISTS, "newline_id", "starts_in"), given)
    except InvalidArgument as error:
        raise InvalidArgument(f"phase_tags: {error.message}") from None
    start, end, tool_start, tool_end = (_ids(given, key) for key in _LISTS)
    for one, other, kind in ((start, end, "thinking"), (tool_start, tool_end, "tool_call")):
        if bool(one) != bool(other) or (kind == "thinking" and not one):
            raise InvalidArgument(f"phase_tags: give both {kind}_start_ids and {kind}_end_ids, with one id or more")
    _refuse_equal_tags(dict(zip(_LISTS, (start, end, tool_start, tool_end), strict=True)))
    starts_in = given.get("starts_in")
    if starts_in is None and len(start) > 1:
        raise InvalidArgument(
            "phase_tags: thinking_start_ids has several ids, which an answer could have, too: set starts_in to "
            "thinking if an output begins with thinking unless the prompt closes it, else to answer"
        )
    if starts_in is not None and (starts_in not in _STARTS or (starts_in == "either" and len(start) > 1)):
        raise InvalidArgument(
            f"phase_tags: starts_in must be one of {', '.join(_STARTS)} (either: for a start tag of one id), not "
            f"{starts_in!r:.100}"
        )
    newline = None if given.get("newline_id") is None else _ids({"newline_id": [given["newline_id"]]}, "newline_id")[0]
    tags = thinking_tags(start, end, newline, starts_in)
    return tags.with_tool_call(tool_start, tool_end) if tool_start else tags


def _refuse_equal_tags(tags: Mapping[str, tuple[int, ...]]) -> None:
    seen: dict[tuple[int, ...], str] = {}
    for key, ids in tags.items():
        if ids and seen.setdefault(ids, key) != key:
            raise InvalidArgument(
                f"phase_tags: {key} has the same ids as {seen[ids]}: a tag begins or ends one phase; change one of them"
            )


def _ids(given: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = given.get(key, [])
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_TAG:
        raise InvalidArgument(f"phase_tags: {key} must be a list of at most {_MAX_TAG} token ids, not {value!r:.100}")
    for one in value:
        if type(one) is not int or not 0 <= one <= _MAX_ID:
            raise InvalidArgument(
                f"phase_tags: {key} must hold token ids, integers in [0, {_MAX_ID}], not {one!r:.100}"
            )
    return tuple(value)
