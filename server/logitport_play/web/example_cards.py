"""The examples as HTML: the text without and with a processor, and the step that it changes most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport_play.shown_examples import STEPS
from logitport_testing.view.markup import Markup, join, tag
from logitport_testing.view.texts import level, percent, probability, token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_play.shown_examples import Example
    from logitport_testing import Simulation, StepRecord

_BARS = 6


def example_card(example: Example) -> dict[str, Any]:
    """Run an example. Returns its HTML, and the settings that run it in a lane. Raises LogitportError."""
    before, after = example.run(without=True), example.run(without=False)
    counted = [example.is_counted(run.steps) for run in (before, after)]
    numbers = " \N{RIGHTWARDS ARROW} ".join(str(sum(one)) for one in counted)
    html = join(
        tag("h3", example.title),
        tag("p", example.about),
        tag("p", tag("b", numbers), f" {example.counted} in {STEPS} steps", class_="counts"),
        _text("without", before, counted[0]),
        _text(f"with {example.processor}", after, counted[1]),
        _bars(max(after.steps, key=lambda step: step.moved), after),
    )
    chain = [{"processor": example.processor, "params": example.params}]
    settings = {"prompt": example.prompt, "seed": example.seed, "steps": STEPS, "chain": chain}
    return {"title": example.title, "html": html, **settings}


def _text(label: str, run: Simulation, counted: Sequence[bool]) -> Markup:
    """The tokens of a run; the color is the mass that moved, and counted ones are marked."""
    tokens = [
        tag(
            "span",
            token(step.token_id, run.texts) if step.token_id is not None else None,
            class_=f"lp-tile {'counted' if is_counted else level(step.moved)}",
            title=f"moved {percent(step.moved)}",
        )
        for step, is_counted in zip(run.steps, counted, strict=True)
    ]
    prompt = "".join(run.texts[token_id] for token_id in run.prompt_token_ids)
    text = tag("div", tag("span", prompt, class_="lp-prompt"), *tokens, class_="lp-tokens")
    return tag("figure", tag("figcaption", label), text)


def _bars(step: StepRecord, run: Simulation) -> Markup:
    """The probabilities of the best ids of a step, before and after the processor."""
    history = [*run.prompt_token_ids, *run.output_token_ids]
    last = tag("code", token(history[len(run.prompt_token_ids) + step.index - 1], run.texts))
    caption = tag("caption", f"Step {step.index + 1}, after ", last, f": moved {percent(step.moved)}")
    ids, columns = step.candidates.ids[:_BARS].tolist(), step.candidates.probabilities[:_BARS, [0, -1]].tolist()
    rows = [_row(token_id, before, after, run.texts) for token_id, (before, after) in zip(ids, columns, strict=True)]
    return tag("table", caption, tag("tbody", *rows), class_="bars")


def _row(token_id: int, before: float, after: float, texts: Mapping[int, str]) -> Markup:
    bars = [
        tag("rect", x=0, y=y, width=round(100 * value, 2), height=5, class_=class_)
        for y, value, class_ in ((0, before, "before"), (6, after, "lp-c1"))
    ]
    figure = tag("svg", *bars, viewBox="0 0 100 11", preserveAspectRatio="none", aria_hidden="true")
    numbers = f"{probability(before)} \N{RIGHTWARDS ARROW} {probability(after)}"
    return tag("tr", tag("th", token(token_id, texts), scope="row"), tag("td", figure), tag("td", numbers))
