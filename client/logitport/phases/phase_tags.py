"""The description of a model's phases: the ids that begin and end each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

# By their numbers in a tracker. `header` is the text of a template between two blocks, such as harmony's
# `<|start|>assistant`; no processor can choose it.
PHASES = ("answer", "thinking", "tool_call", "header")
ANSWER, THINKING, TOOL_CALL, HEADER = range(len(PHASES))
ANY = -1

# Where an output starts if the prompt does not decide it. `either`: in the answer, or with a thinking block.
StartsIn: TypeAlias = Literal["answer", "thinking", "either", "header"]


@dataclass(frozen=True)
class PhaseTag:
    """Ids that begin a block of a phase, just after them.

    Attributes:
        ids: one or more.
        begins: number of the phase that begins.
        within: number of the phase that the tag ends, in the output; `ANY` if it counts in each.
        first_only: whether it counts in the output only as the first ids of a block.
    """

    ids: tuple[int, ...]
    begins: int
    within: int = ANY
    first_only: bool = False


@dataclass(frozen=True)
class PhaseTags:
    """The tags of a model.

    Attributes:
        tags: if several end at the same id, the longest counts, or the earlier of two that are equally long.
        starts_in: where an output starts if the prompt does not decide it.
        newline: an id that may precede the first start tag, or None.
    """

    tags: tuple[PhaseTag, ...]
    starts_in: StartsIn = "answer"
    newline: int | None = None

    @property
    def ids(self) -> list[int]:
        """All ids of the tags, and the newline."""
        return [*(one for tag in self.tags for one in tag.ids), *([] if self.newline is None else [self.newline])]

    @property
    def opening_id(self) -> int | None:
        """The id of the thinking start tag, which stays possible before the answer's first id; None if it need not."""
        if self.starts_in != "either":
            return None
        return next(tag.ids[0] for tag in self.tags if tag.begins == THINKING)

    def with_tool_call(self, start: Sequence[int], end: Sequence[int]) -> PhaseTags:
        """Return tags that also mark a tool call, which the answer follows."""
        return replace(self, tags=(*self.tags, *_block(start, end, TOOL_CALL)))

    def without_tool_call(self) -> PhaseTags:
        """Return tags that do not mark tool calls, which are parts of the answer then."""
        kept = tuple(tag for tag in self.tags if TOOL_CALL not in (tag.begins, tag.within))
        return replace(self, tags=kept)


def thinking_tags(
    start: Sequence[int], end: Sequence[int], newline: int | None = None, starts_in: StartsIn | None = None
) -> PhaseTags:
    """Return the tags of a model that thinks between two tags, and answers outside.

    Args:
        start: ids that open a block, one or more.
        end: ids that close it, one or more.
        newline: see `PhaseTags`.
        starts_in: by default `either`, which needs a start tag of one id.
    """
    return PhaseTags(_block(start, end, THINKING), starts_in or "either", newline)


def harmony_tags(channel: int, message: int, names: Sequence[Sequence[int]], ends: Sequence[int]) -> PhaseTags:
    """Return the tags of gpt-oss's channels: analysis is thinking, final the answer, commentary a tool call.

    Args:
        channel: id of `<|channel|>`.
        message: id of `<|message|>`.
        names: ids of the three names, in this order. A tool call's block begins with its recipient.
        ends: ids that end a message.
    """
    analysis, final, commentary = names
    tags = (
        PhaseTag((channel, *analysis, message), THINKING),
        PhaseTag((channel, *final, message), ANSWER),
        PhaseTag((channel, *commentary), TOOL_CALL),
        *(PhaseTag((end,), HEADER) for end in ends),
    )
    return PhaseTags(tags, starts_in="header")


def _block(start: Sequence[int], end: Sequence[int], phase: int) -> tuple[PhaseTag, PhaseTag]:
    # Ordinary ids, as a start tag of several ids has, also occur in a string of the answer.
    opens = PhaseTag(tuple(start), phase, first_only=len(start) > 1)
    return opens, PhaseTag(tuple(end), ANSWER, within=phase)
