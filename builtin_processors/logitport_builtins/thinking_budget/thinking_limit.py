"""The limit in a request's parameters: a budget, and the ids that mark thinking for its model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument
from logitport.phases import THINKING, THINKING_PRESETS, tags_of_tokenizer
from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from logitport.tokenizers import Tokenizer

NO_LIMIT = sys.maxsize  # a budget that is never used up


@dataclass(frozen=True)
class ThinkingTags:
    """How a model marks its thinking.

    Attributes:
        start: the ids that open a block, one or more.
        end: the ids that close it, one or more.
        newline: the id that is written before `end` when a block is cut short, or None.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    newline: int | None

    @property
    def ids(self) -> list[int]:
        """All ids of the tags and the newline."""
        return [*self.start, *self.end, *([] if self.newline is None else [self.newline])]


@dataclass(frozen=True)
class ThinkingLimit:
    """At most `budget` ids between the tags of a block.

    Attributes:
        budget: number of ids.
        tags: the tags.
        end_text: ids that are written before the end tag when a block is cut short; or their text.
        soft_from: number of ids from which on the end tag becomes more likely; -1 for never.
        min_thinking: number of ids before which the end tag is denied.
    """

    budget: int
    tags: ThinkingTags
    end_text: tuple[int, ...] | str = ()
    soft_from: int = -1
    min_thinking: int = 0

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids of `end_text`; none while only their text is known."""
        return () if isinstance(self.end_text, str) else self.end_text

    @property
    def ids(self) -> list[int]:
        """All ids of the tags, the newline and the text."""
        return [*self.tags.ids, *self.end_ids]

    def with_ids_of(self, tokenizer: Callable[[], Tokenizer]) -> ThinkingLimit:
        """Return the limit with the ids that depend on the tokenizer of the request, which is called if there are some.

        Raises:
            InvalidArgument: the tokenizer or its template is missing, or has no start and end tag that are known.
            InvalidArgument: as `read_limit`.
        """
        tags, text = self.tags, self.end_text
        if tags is FROM_TOKENIZER:
            tags = _tags_in_template(tokenizer)
        if isinstance(text, str):
            text = _ids_of_text(tokenizer, text)
        limit = replace(self, tags=tags, end_text=text)
        if problem := closing_problem(limit):
            raise InvalidArgument(f"thinking_budget: {problem}")
        return limit


PRESETS: Mapping[str, ThinkingTags] = MappingProxyType(
    {name: ThinkingTags((start,), (end,), newline) for name, (start, end, newline) in THINKING_PRESETS.items()}
)

# No history has these ids.
FROM_TOKENIZER = ThinkingTags((-1,), (-2,), None)
_GIVE_TAGS = f"give a preset ({', '.join(PRESETS)}), or thinking_start_ids and thinking_end_ids"
_TAG_KEYS = ("thinking_start_ids", "thinking_end_ids", "newline_id")
KEYS_OF_TAGS = ("preset", *_TAG_KEYS)
_SOFT_KEYS = ("end_text", "soft_from", "min_thinking")
_MAX_TAG_IDS = 64  # of each tag, as in `phase_tags`: comparisons with longer ones would take too long
_MAX_TEXT_IDS = 256
_MAX_TEXT_BYTES = 4 << 10


def read_limit(params: Mapping[str, Any]) -> ThinkingLimit:
    """Read the limit from the parameters of `thinking_budget`.

    Raises:
        InvalidArgument: a parameter is missing, unknown or invalid.
    """
    given = Params("thinking_budget", params, ("thinking_budget", *KEYS_OF_TAGS, *_SOFT_KEYS))
    budget = given.integer("thinking_budget", minimum=0)
    limit = ThinkingLimit(
        budget,
        read_tags(given),
        _read_end_text(given) if "end_text" in given else (),
        given.integer("soft_from", minimum=0) if "soft_from" in given else -1,
        given.integer("min_thinking", minimum=0) if "min_thinking" in given else 0,
    )
    if limit.min_thinking > budget:
        raise given.error(f"min_thinking is {limit.min_thinking}, and thinking_budget {budget}: give no less as budget")
    if limit.soft_from >= budget and "soft_from" in given:
        raise given.error(f"soft_from is {limit.soft_from}, and thinking_budget {budget}: give less as soft_from")
    if problem := closing_problem(limit):
        raise given.error(problem)
    return limit


def _read_end_text(given: Params) -> tuple[int, ...] | str:
    if given.is_text("end_text"):
        return given.checked_texts("end_text", [given.string("end_text")], _MAX_TEXT_BYTES)[0]
    ids = tuple(given.token_ids("end_text").tolist())
    if len(ids) > _MAX_TEXT_IDS:
        raise given.error(f"end_text has {len(ids)} ids; give at most {_MAX_TEXT_IDS}")
    return ids


def read_tags(given: Params) -> ThinkingTags:
    """Read the tags from the parameters `KEYS_OF_TAGS`; without them, `FROM_TOKENIZER`.

    Raises:
        InvalidArgument: a parameter is missing or invalid, or two exclude each other.
    """
    if not any(key in given for key in KEYS_OF_TAGS):
        return FROM_TOKENIZER
    return _read_preset(given) if "preset" in given else _read_ids(given)


def _read_preset(given: Params) -> ThinkingTags:
    conflicting = [key for key in _TAG_KEYS if key in given]
    if conflicting:
        raise given.error(f"preset and {conflicting[0]} exclude each other: leave one of them out")
    preset = given.string("preset")
    if preset not in PRESETS:
        raise given.error(f"unknown preset {preset!r}; known presets: {', '.join(PRESETS)}")
    return PRESETS[preset]


def _tags_in_template(tokenizer: Callable[[], Tokenizer]) -> ThinkingTags:
    try:
        found = tags_of_tokenizer(tokenizer())
        start = next((tag.ids for tag in found.tags if tag.begins == THINKING), ())
        end = next((tag.ids for tag in found.tags if tag.within == THINKING), ())
        if not start or not end:
            raise InvalidArgument("its chat template has channels instead of one end tag")
    except InvalidArgument as error:
        raise InvalidArgument(f"the tags of thinking are not known: {error.message}; or {_GIVE_TAGS}") from error
    return ThinkingTags(start, end, found.newline)


def _ids_of_text(tokenizer: Callable[[], Tokenizer], text: str) -> tuple[int, ...]:
    try:
        return tuple(tokenizer().encode(text, add_special_tokens=False))
    except InvalidArgument as error:
        raise InvalidArgument(
            f"thinking_budget: end_text is a text, which needs the session's tokenizer: {error.message}; "
            "or give its ids"
        ) from error


def _read_ids(given: Params) -> ThinkingTags:
    if "thinking_start_ids" not in given or "thinking_end_ids" not in given:
        raise given.error(_GIVE_TAGS)
    start = tuple(given.token_ids("thinking_start_ids").tolist())
    end = tuple(given.token_ids("thinking_end_ids").tolist())
    if not (0 < len(start) <= _MAX_TAG_IDS and 0 < len(end) <= _MAX_TAG_IDS):
        raise given.error(f"thinking_start_ids and thinking_end_ids must hold 1 to {_MAX_TAG_IDS} ids")
    return ThinkingTags(start, end, given.token_id("newline_id") if "newline_id" in given else None)


def closing_problem(limit: ThinkingLimit) -> str:
    """Explain why a block would not be closed by the ids that are forced; "" if it is closed."""
    tags, text = limit.tags, limit.end_ids
    closing = (*text, *tags.end)
    if tags.newline is not None:
        closing = (tags.newline, *closing)
    if _contains(closing, tags.start):
        names = "newline_id, end_text and thinking_end_ids" if text else "newline_id and thinking_end_ids"
        return f"{names} must not contain thinking_start_ids: no block would close"
    if text and (text[0] == tags.end[0] or _contains(text, tags.end)):
        return "end_text must not begin like thinking_end_ids, or contain them: the block would close before its end"
    if limit.budget == 0 and _opens_again(limit):
        return (
            "no block that is cut short at once would close: the last ids of thinking_start_ids and the first that "
            "close the block are thinking_start_ids again"
        )
    return ""


def _contains(ids: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(ids[i : i + len(part)] == part for i in range(len(ids)))


def _opens_again(limit: ThinkingLimit) -> bool:
    """Whether the ids that close a block complete a start tag, if they follow the block's own start tag at once."""
    tags, closing = limit.tags, (*limit.end_ids, *limit.tags.end)
    without = (*tags.start, *closing)
    closings = [without] if tags.newline is None else [without, (*tags.start, tags.newline, *closing)]
    size = len(tags.start)
    return any(
        ids[end - size : end] == tags.start
        for ids in closings
        # If both tags end at the last id, the longer one counts.
        for end in range(size + 1, len(ids) + (len(tags.end) <= size))
    )
