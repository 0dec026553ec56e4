"""The limit in a request's parameters: a budget, and the ids that mark thinking for its model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from logitport_builtins.params import Params

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """At most `budget` ids between the tags of a block."""

    budget: int
    tags: ThinkingTags


# Source of the ids: sglang/srt/sampling/custom_logit_processor.py, SGLang 0.5.23.
PRESETS: Mapping[str, ThinkingTags] = MappingProxyType(
    {
        "qwen3": ThinkingTags(start=(151667,), end=(151668,), newline=198),
        "deepseek_r1": ThinkingTags(start=(128798,), end=(128799,), newline=201),
        "glm4_moe": ThinkingTags(start=(151350,), end=(151351,), newline=198),
        "inkling": ThinkingTags(start=(200008,), end=(200010,), newline=198),
    }
)

_TAG_KEYS = ("thinking_start_ids", "thinking_end_ids", "newline_id")


def read_limit(params: Mapping[str, Any]) -> ThinkingLimit:
    """Read the limit from the parameters of `thinking_budget`.

    Raises:
        InvalidArgument: a parameter is missing, unknown or invalid.
    """
    given = Params("thinking_budget", params, ("thinking_budget", "preset", *_TAG_KEYS))
    budget = given.integer("thinking_budget", minimum=0)
    tags = _read_preset(given) if "preset" in given else _read_tags(given)
    if budget == 0 and _opens_again(tags):
        raise given.error(
            "with thinking_budget 0, no block would close: the last ids of thinking_start_ids and the first that close "
            "the block are thinking_start_ids again"
        )
    return ThinkingLimit(budget, tags)


def _read_preset(given: Params) -> ThinkingTags:
    conflicting = [key for key in _TAG_KEYS if key in given]
    if conflicting:
        raise given.error(f"preset and {conflicting[0]} exclude each other: leave one of them out")
    preset = given.string("preset")
    if preset not in PRESETS:
        raise given.error(f"unknown preset {preset!r}; known presets: {', '.join(PRESETS)}")
    return PRESETS[preset]


def _read_tags(given: Params) -> ThinkingTags:
    if "thinking_start_ids" not in given or "thinking_end_ids" not in given:
        raise given.error(f"give a preset ({', '.join(PRESETS)}), or thinking_start_ids and thinking_end_ids")
    start = tuple(given.token_ids("thinking_start_ids").tolist())
    end = tuple(given.token_ids("thinking_end_ids").tolist())
    if not start or not end:
        raise given.error("thinking_start_ids and thinking_end_ids must hold one id or more")
    newline = given.token_id("newline_id") if "newline_id" in given else None
    closing = end if newline is None else (newline, *end)
    if any(closing[i : i + len(start)] == start for i in range(len(closing))):
        raise given.error("newline_id and thinking_end_ids must not contain thinking_start_ids: no block would close")
    return ThinkingTags(start, end, newline)


def _opens_again(tags: ThinkingTags) -> bool:
    """Whether the ids that close a block complete a start tag, if they follow the block's own start tag at once."""
    without = (*tags.start, *tags.end)
    closings = [without] if tags.newline is None else [without, (*tags.start, tags.newline, *tags.end)]
    size = len(tags.start)
    return any(
        ids[end - size : end] == tags.start
        for ids in closings
        # If both tags end at the last id, the longer one counts.
        for end in range(size + 1, len(ids) + (len(tags.end) <= size))
    )
