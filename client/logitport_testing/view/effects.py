"""Effects of each processor in one step, in words."""

from __future__ import annotations

import re
from itertools import dropwhile
from typing import TYPE_CHECKING

import numpy as np

from logitport.system.installation import OUR_PACKAGES
from logitport_testing.view.markup import Markup, join, tag
from logitport_testing.view.texts import color, listed, percent, span, swatch, token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from logitport_testing.step_records.step_record import ProcessorRecord
    from logitport_testing.view.markup import Child

_FRAME = re.compile(r"(?m)^(?=  File \")")
MAX_IDS = 5  # that a sentence lists
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def effects(
    records: Sequence[ProcessorRecord], texts: Mapping[int, str], best: Sequence[int], *, mass: bool = True
) -> Markup | None:
    """A row for each processor; None without processors. Lists of ids begin with those of `best`."""
    if not records:
        return None
    return tag("ol", *(_row(record, texts, best, mass=mass) for record in records), class_="lp-effects")


def best_first(ids: NDArray[np.int32], best: Sequence[int]) -> list[int]:
    """Up to `MAX_IDS` of the ids, those of `best` first, in its order."""
    inside = np.isin(best, ids)
    first = [token_id for token_id, found in zip(best, inside, strict=True) if found]
    others = [token_id for token_id in ids[: len(first) + MAX_IDS].tolist() if token_id not in first]
    return [*first, *others][:MAX_IDS]


def _row(record: ProcessorRecord, texts: Mapping[int, str], best: Sequence[int], *, mass: bool) -> Markup:
    moved = tag(
        "svg",
        tag("rect", x=0, y=0, width=round(100 * record.moved, 2), height=6, class_=color(record.place)),
        viewBox="0 0 100 6",
        preserveAspectRatio="none",
        class_="lp-mass",
        aria_hidden="true",
    )
    return tag(
        "li",
        swatch(record.place),
        tag("div", tag("b", record.processor), " ", *_what(record, texts, best), *_events(record), class_="lp-what"),
        tag("span", moved, tag("span", f"moved {percent(record.moved)}"), class_="lp-moved") if mass else None,
        class_="lp-raised" if record.error else None,
    )


def own_frames(trace: str) -> str:
    """A traceback without its first frames, those of logitport that call the processor."""
    begin, *frames = _FRAME.split(trace)
    own = dropwhile(_is_ours, frames)
    kept = "".join(own)
    return begin + kept if kept else trace


def _is_ours(frame: str) -> bool:
    path = frame.partition('"')[2].partition('"')[0].replace("\\", "/")
    return any(f"/{package}/" in path for package in OUR_PACKAGES)


def raised(error: str) -> Markup:
    """The message of an error, with its traceback."""
    message, _, trace = error.partition("\n\nRemote traceback:\n")
    lines = tag("pre", own_frames(trace), tabindex=0)
    details = tag("details", tag("summary", "traceback"), lines, open=True) if trace else None
    return join(tag("span", message, class_="lp-error"), details)


def _what(record: ProcessorRecord, texts: Mapping[int, str], best: Sequence[int]) -> Sequence[Child]:
    if record.error:
        return ["was left out: ", raised(record.error)]
    if not record.called:
        return ["was not called"]
    if record.forced is not None:
        return ["forced ", tag("code", token(record.forced, texts))]
    parts = [
        *listed_ids("denied", record.denied, record.before.allowed, texts, best),
        *listed_ids("restored", record.restored, 0, texts, best),
        *_biased(record, texts, best),
    ]
    return [join("; " if place else "", part) for place, part in enumerate(parts)] or ["changed nothing"]


def _events(record: ProcessorRecord) -> list[Child]:
    """Describe the events, with their details."""
    described: list[Child] = []
    for name, values in record.events:
        details = ", ".join(f"{key}={value}" for key, value in values.items())
        described += ["; reported ", tag("code", f"{name}({details})" if details else name)]
    return described


def listed_ids(
    verb: str, ids: NDArray[np.int32], of: int, texts: Mapping[int, str], best: Sequence[int]
) -> list[Markup]:
    """Describe a change of some ids, with the first of them, or []. `of` is their possible number, or 0."""
    if not ids.size:
        return []
    total = f" of {of}" if of > ids.size > MAX_IDS else ""
    more = f", {_ELLIPSIS}" if ids.size > MAX_IDS else ""
    return [join(f"{verb} {_count(ids.size)}{total}: ", listed(best_first(ids, best), texts), more)]


def _biased(record: ProcessorRecord, texts: Mapping[int, str], best: Sequence[int]) -> list[Markup]:
    if not record.biased.size:
        return []
    by = span(record.bias)
    if record.reads_logits or record.biased.size > MAX_IDS:
        everything = record.biased.size >= record.after.allowed
        which = f"all {record.biased.size} logits" if everything else _count(record.biased.size)
        return [join(f"changed {which} by {by}" if record.reads_logits else f"biased {which} by {by}")]
    ids = best_first(record.biased, best)
    return [join(f"biased {_count(len(ids))} by {by}: ", listed(ids, texts))]


def _count(number: int) -> str:
    return "1 id" if number == 1 else f"{number} ids"
