"""Draws the axes as curves, and one step as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.peers import SGLang
from benchmarks.report import duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.measure import Timing
    from benchmarks.report import Report

_AXES = ("rows", "history", "vocabulary", "distinct processors", "engines")
_CURVES = {
    "SGLang in process": (SGLang.name, "exposed", "C3", "o-"),
    "built-ins in process": ("built-ins in process", "blocking", "C7", "s-"),
    "gRPC, not overlapped": ("service, grpc", "blocking", "C0", "^--"),
    "gRPC, exposed": ("service, grpc", "exposed", "C0", "^-"),
    "local, not overlapped": ("service, local", "blocking", "C2", "v--"),
    "local, exposed": ("service, local", "exposed", "C2", "v-"),
}


_STEP = {
    "SGLang in process": (SGLang.name, "blocking", "C3"),
    "service over gRPC, after the forward pass": ("service, grpc", "blocking", "C0"),
    "service on the same host, after the forward pass": ("service, local", "blocking", "C2"),
    "same algorithms in process, no service": ("built-ins in process", "blocking", "C7"),
    "service over gRPC, during the forward pass": ("service, grpc", "exposed", "C0"),
    "service on the same host, during the forward pass": ("service, local", "exposed", "C2"),
}


def draw(report: Report, path: Path) -> None:
    """Draw one panel per axis; medians, milliseconds, both scales logarithmic."""
    mpl.use("Agg")
    figure = Figure(figsize=(15, 3.4), layout="constrained")
    panels = figure.subplots(1, len(_AXES), sharey=True)
    for panel, axis in zip(panels, _AXES, strict=True):
        _draw_axis(panel, report, axis)
    panels[0].set_ylabel("ms of the engine's thread a step")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(_CURVES), frameon=False)
    figure.savefig(path, dpi=80)


def _draw_axis(panel: Axes, report: Report, axis: str) -> None:
    for label, (contestant, quantity, color, style) in _CURVES.items():
        points = [
            (int(row.case), row.timing.median / 1e3)
            for row in report.rows
            if (row.section, row.contestant, row.quantity) == (axis, contestant, quantity)
        ]
        if points:
            panel.plot(*zip(*points, strict=True), style, color=color, label=label, markersize=4)
            panel.set_xticks([x for x, _ in points], [f"{x // 1000}k" if x >= 1000 else str(x) for x, _ in points])
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_title(axis)
    panel.minorticks_off()
    panel.grid(visible=True, which="major", alpha=0.3)


def draw_step(timings: Mapping[tuple[str, str], Timing], path: Path) -> None:
    """One step as a bar for each contestant; medians on a logarithmic scale, with their values.

    Args:
        timings: the timings of the step by (contestant, quantity).
        path: the PNG to write.
    """
    mpl.use("Agg")
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots()
    medians = [timings[contestant, quantity].median for contestant, quantity, _ in _STEP.values()]
    bars = axes.barh(list(_STEP), [median / 1e3 for median in medians], color=[color for *_, color in _STEP.values()])
    axes.bar_label(bars, [duration(median) for median in medians], padding=4)
    axes.set_xscale("log")
    axes.set_xlabel("ms on the critical path of one step (logarithmic)")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)
