"""Charts over the steps, as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport_testing.view.markup import Markup, tag
from logitport_testing.view.texts import color, percent, swatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport_testing.step_records.step_record import StepRecord

_STEP, _HEIGHT = 10.0, 40.0  # of the coordinates; the page stretches them
_GAP = 1.0
_MIN_STEPS = 24  # fewer steps do not fill the width
_MIN_MASS = 0.1


def charts(steps: Sequence[StepRecord], names: Sequence[str]) -> Markup:
    """The moved mass by processor, and the entropy before and after the chain."""
    return tag("div", _moved(steps, names), _entropy(steps), class_="lp-charts")


def differences(masses: Sequence[float | None], what: Sequence[str]) -> Markup:
    """Draw the difference of two versions at each row.

    Args:
        masses: the mass that one version has elsewhere; None where only its edits are known: a bar without a height.
        what: the title of each row; "" where they do not differ.
    """
    top = max([*(mass for mass in masses if mass is not None), _MIN_MASS])
    bars = []
    for index, (mass, title) in enumerate(zip(masses, what, strict=True)):
        if title:
            height = _HEIGHT - 1 if mass is None else max(1.0, mass / top * (_HEIGHT - 1))
            bars.append(_bar(title, index, _HEIGHT, height, "lp-unknown" if mass is None else color(1)))
    label = f"Differences: {len(bars)} of {len(masses)} rows"
    keys = [
        tag("span", swatch(1), " mass that the new version moves", class_="lp-name"),
        _line_key("lp-before", "other edits, logits not recorded"),
    ]
    figure = _figure("differences", keys, percent(top), _svg(label, len(masses), bars))
    return tag("div", figure, class_="lp-charts")


def _moved(steps: Sequence[StepRecord], names: Sequence[str]) -> Markup:
    """A bar for each step: the mass that the chain moved, divided by what its processors moved, which may be more."""
    top = max([*(step.moved for step in steps), _MIN_MASS])
    bars = []
    for step in steps:
        bottom, total = _HEIGHT, sum(record.moved for record in step.processors)
        for record in step.processors:
            height = record.moved / total * step.moved / top * (_HEIGHT - 1) if total else 0.0
            if height >= 0.05:
                what = f"step {step.index + 1}: {record.place + 1} {record.processor} moved {percent(record.moved)}"
                bars.append(_bar(what, step.index, bottom, height, color(record.place)))
                bottom -= height
    keys = [tag("span", swatch(place), " ", name, class_="lp-name") for place, name in enumerate(names)]
    label = "Mass moved at each step by each processor"
    if steps:
        most = max(steps, key=lambda step: step.moved)
        label += f"; most at step {most.index + 1}, {percent(most.moved)} in all"
    return _figure("mass moved", keys, percent(top), _svg(label, len(steps), bars))


def _bar(title: str, index: int, bottom: float, height: float, class_: str) -> Markup:
    x, width = index * _STEP + _GAP, _STEP - 2 * _GAP
    return tag("rect", tag("title", title), x=x, y=bottom - height, width=width, height=height, class_=class_)


def _line_key(class_: str, name: str) -> Markup:
    return tag("span", tag("span", class_=f"lp-dash {class_}"), f" {name}", class_="lp-name")


def _entropy(steps: Sequence[StepRecord]) -> Markup:
    before, after = [step.raw.entropy for step in steps], [step.final.entropy for step in steps]
    top = max([*before, *after, 0.1])
    lines = [_line(before, top, "lp-before"), _line(after, top, "lp-after")]
    keys = [_line_key("lp-before", "before the chain"), _line_key("lp-after", "after it")]
    label = "Entropy at each step in nats"
    if steps:
        label += (
            f"; in the mean {sum(before) / len(steps):.2f} before and {sum(after) / len(steps):.2f} after the chain"
        )
    return _figure("entropy", keys, f"{top:.1f} nats", _svg(label, len(steps), lines))


def _line(values: Sequence[float], top: float, class_: str) -> Markup:
    points = [
        (number * _STEP + _STEP / 2, _HEIGHT - 1 - value / top * (_HEIGHT - 2)) for number, value in enumerate(values)
    ]
    path = "L".join(f"{x:g} {y:.2f}" for x, y in points)
    if len(points) == 1:  # a line needs two points
        path += f"h{_GAP:g}"
    return tag("path", d=f"M{path}" if points else "", class_=class_)


def _svg(label: str, count: int, marks: Sequence[Markup]) -> Markup:
    width = max(count, _MIN_STEPS) * _STEP
    columns = []
    for index in range(count):
        class_ = f"lp-column lp-at-{index}"
        columns.append(tag("rect", x=index * _STEP, y=0, width=_STEP, height=_HEIGHT, class_=class_, data_step=index))
    return tag(
        "svg",
        *columns,
        *marks,
        viewBox=f"0 0 {width:g} {_HEIGHT:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def _figure(title: str, keys: Sequence[Markup], top: str, chart: Markup) -> Markup:
    heading = tag("figcaption", tag("b", title), *keys)
    axis = tag("span", tag("span", top), tag("span", "0"), class_="lp-axis", aria_hidden="true")
    return tag("figure", heading, tag("div", axis, chart, class_="lp-plot"), class_="lp-figure")
