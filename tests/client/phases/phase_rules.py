"""The rules for phases, by reading the whole history at each call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.phases.phase_tracker import TagFields

NEAR = 4


def block_of(
    tags: Sequence[TagFields],
    starts_in: int,
    opening_id: int,
    newline: int,
    prompt: Sequence[int],
    output: Sequence[int],
) -> tuple[int, int, int]:
    """Return the phase of the next id, where its block begins, and the id that no edit may change."""
    ids = [*prompt, *output]
    in_prompt = _blocks(tags, ids, 0, len(prompt), (0, starts_in), len(prompt))
    first = (len(prompt), starts_in)
    is_decided = bool(in_prompt) and (in_prompt[-1][1] == 1 or in_prompt[-1][0] >= len(prompt) - NEAR)
    if is_decided:
        first = in_prompt[-1]
    later = _blocks(tags, ids, len(prompt), len(ids), first, len(prompt))
    begin, phase = [first, *later][-1]
    is_blank = not output or (newline >= 0 and len(output) < NEAR and set(output) == {newline})
    return phase, begin, opening_id if is_blank and not is_decided and not later and opening_id >= 0 else -1


def _blocks(
    tags: Sequence[TagFields], ids: Sequence[int], begin: int, end: int, first: tuple[int, int], prompt_length: int
) -> list[tuple[int, int]]:
    found = [first]
    for length in range(begin + 1, end + 1):
        ending = [tag for tag in tags if list(ids[:length])[-len(tag[0]) :] == list(tag[0])]
        if not ending:
            continue
        tag_ids, begins, within, first_only = max(ending, key=lambda tag: len(tag[0]))
        if length <= prompt_length:  # all tags of the prompt count
            found.append((length, begins))
            continue
        if within not in (-1, found[-1][1]):
            continue
        is_first = length - len(tag_ids) <= max(found[-1][0], prompt_length)
        if first_only and not is_first:
            continue
        found.append((length, begins))
    return found[1:]
