"""The view of a simulation in a notebook: HTML, CSS and SVG, without scripts and without other files."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING

from logitport_testing.view.charts import charts
from logitport_testing.view.markup import Markup, tag
from logitport_testing.view.panes import pane
from logitport_testing.view.tiles import step_tiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_testing.step_records.step_record import StepRecord

_MAX_STEPS = 200  # each has a table of 5 kB
_numbers = count(1)


def notebook(
    prompt: Sequence[int],
    steps: Sequence[StepRecord],
    names: Sequence[str],
    texts: Mapping[int, str],
    ended: str = "",
) -> str:
    """The view; a click on a token, or an arrow key, shows its step. It ends after the first 200 steps.

    `ended` says why there are no further steps.
    """
    prefix = f"lp{next(_numbers)}"
    shown = steps[:_MAX_STEPS]
    ids = [*prompt[-1:], *(step.token_id for step in shown)]
    before = ids[len(ids) - len(shown) - 1 :] if prompt else [None, *ids]
    panes = [
        tag("section", pane(step, texts, after=last), class_="lp-pane", id=f"{prefix}-p{step.index}")
        for step, last in zip(shown, before, strict=False)
    ]
    rest = f"The first {_MAX_STEPS} of {len(steps)} steps." if len(steps) > _MAX_STEPS else None
    left = tag(
        "div",
        step_tiles(prefix, prompt, shown, texts),
        charts(shown, names),
        tag("p", rest, class_="lp-facts") if rest else None,
        tag("p", ended, class_="lp-facts") if ended else None,
        class_="lp-run",
    )
    right = tag("div", *panes, class_="lp-panes")
    style = tag("style", Markup(css() + _rules(prefix, shown)))
    return tag("div", style, tag("div", left, right, class_="lp-columns"), class_="lp-view lp-notebook", id=prefix)


@lru_cache(maxsize=1)
def css() -> str:
    """The style of all views."""
    return files("logitport_testing.view").joinpath("view.css").read_text("utf-8")


def _rules(prefix: str, steps: Sequence[StepRecord]) -> str:
    """Rules that show the pane of the checked tile. A browser without :has shows all panes."""
    shown = ",".join(f"#{prefix}:has(#{prefix}-s{one.index}:checked) #{prefix}-p{one.index}" for one in steps)
    marked = ",".join(f"#{prefix}:has(#{prefix}-s{one.index}:checked) .lp-at-{one.index}" for one in steps)
    if not steps:
        return ""
    return (
        f"@supports selector(:has(a)){{#{prefix} .lp-pane{{display:none}}{shown}{{display:block}}"
        f"{marked}{{fill:var(--lp-mark)}}}}"
    )
