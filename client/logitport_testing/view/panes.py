"""One step: its candidates after each processor, and what each processor did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_testing.view.effects import best_first, effects
from logitport_testing.view.markup import Markup, join, tag
from logitport_testing.view.texts import color, percent, plain, probability, swatch, token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport_testing.step_records.step_record import ProcessorRecord, StepRecord

_CHANGED = 0.005  # a smaller difference does not show in two digits


def pane(step: StepRecord, texts: Mapping[int, str], *, after: int | None = None, buttons: bool = False) -> Markup:
    """The table of candidates, and the effects.

    Args:
        step: the step.
        texts: the texts of ids; an id without one is shown as a number.
        after: the id before it, or None.
        buttons: whether candidates are buttons, which force them.
    """
    facts = [
        f"moved {percent(step.moved)}",
        f"entropy {step.raw.entropy:.2f} \N{RIGHTWARDS ARROW} {step.final.entropy:.2f} nats",
        f"{step.final.allowed} of {step.raw.allowed} ids allowed",
    ]
    return join(
        heading(f"Step {step.index + 1}", after, facts, texts),
        tag("p", step.error, class_="lp-error") if step.error else None,
        candidates_table(step, texts, buttons=buttons),
        effects(step.processors, texts, step.candidates.ids.tolist()),
    )


def heading(title: str, after: int | None, facts: Sequence[str], texts: Mapping[int, str]) -> Markup:
    """The heading of a pane: its title, the id before the step, and facts."""
    where = join(", after ", tag("code", token(after, texts))) if after is not None else None
    shown = tag("p", " \N{MIDDLE DOT} ".join(facts), class_="lp-facts")
    return tag("div", tag("h3", title, where), shown, class_="lp-heading")


def ids_shown(step: StepRecord) -> set[int]:
    """The ids that the pane and the tile show as texts."""
    best = step.candidates.ids.tolist()
    shown = {*best}
    for record in step.processors:
        for ids in (record.denied, record.restored, record.biased):
            shown.update(best_first(ids, best))
        shown |= set() if record.forced is None else {record.forced}
    return shown


def candidates_table(
    step: StepRecord, texts: Mapping[int, str], *, buttons: bool = False, final: bool = True
) -> Markup:
    """The candidates of a step, as for `pane`; without `final` there is no column for the row after the chain."""
    stages = [
        tag(
            "th",
            swatch(record.place),
            tag("span", f"after {record.place + 1} {record.processor}", class_="lp-hidden"),
            tag("span", "!", class_="lp-mark", aria_hidden="true") if record.error else None,
            scope="col",
            title=f"after {record.processor}" + (", which failed" if record.error else ""),
        )
        for record in step.processors
    ]
    head = tag(
        "tr",
        tag("th", "candidate", scope="col"),
        tag("th", "model", scope="col"),
        *stages,
        tag("th", "final", scope="col", class_="lp-final") if final else None,
    )
    rows = [
        _row(step, texts, int(token_id), probabilities, buttons=buttons, has_final=final)
        for token_id, probabilities in zip(step.candidates.ids, step.candidates.probabilities.tolist(), strict=True)
    ]
    caption = tag("caption", f"Probabilities of step {step.index + 1}", class_="lp-hidden")
    table = tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="lp-table")
    return tag("div", table, class_="lp-scroll", tabindex=0, role="region", aria_label="Candidates")


def _row(
    step: StepRecord,
    texts: Mapping[int, str],
    token_id: int,
    probabilities: Sequence[float],
    *,
    buttons: bool,
    has_final: bool,
) -> Markup:
    chosen = token_id == step.token_id
    shown = tag("span", token(token_id, texts), class_="lp-text")
    number = tag("span", str(token_id), class_="lp-id") if token_id in texts else None
    if buttons:
        what = f"force {plain(token_id, texts)} at step {step.index + 1}"
        candidate = tag(
            "button", shown, number, type="button", class_="lp-force", data_token=token_id, aria_label=what, title=what
        )
    else:
        candidate = join(shown, number)
    stages = [
        _cell(record, before, now)
        for record, before, now in zip(step.processors, probabilities, probabilities[1:-1], strict=False)
    ]
    final = probabilities[-1]
    return tag(
        "tr",
        tag("th", candidate, scope="row"),
        tag("td", probability(probabilities[0])),
        *stages,
        _final(final, chosen=chosen, given=step.given) if has_final else None,
        class_="lp-chosen" if chosen else None,
    )


def _cell(record: ProcessorRecord, before: float, now: float) -> Markup:
    if record.error:
        return tag("td", "\N{EN DASH}", class_="lp-out", title="left out: it failed")
    if now == 0:
        first = before > 0
        title = f"denied by {record.processor}" if first else None
        return tag("td", "\N{MULTIPLICATION X}", class_="lp-deny" if first else "lp-denied", title=title)
    if abs(now - before) < _CHANGED:
        return tag("td", probability(now), class_="lp-same")
    return tag("td", probability(now), class_=f"lp-changed {color(record.place)}")


def _final(final: float, *, chosen: bool, given: bool) -> Markup:
    mark = ("\N{BLACK LEFT-POINTING TRIANGLE}" if not given else "\N{PUSHPIN}") if chosen else ""
    note = ("forced by hand" if given else "chosen") if chosen else ""
    bar = tag(
        "svg",
        tag("rect", x=0, y=0, width=round(100 * final, 2), height=10),
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        class_="lp-bar",
        aria_hidden="true",
    )
    value = tag("span", probability(final) if final else "\N{EM DASH}", class_="lp-value")
    marked = tag("span", mark, class_="lp-pick", title=note, role="img", aria_label=note) if chosen else None
    return tag("td", tag("span", value, bar, marked, class_="lp-cell"), class_="lp-final")
