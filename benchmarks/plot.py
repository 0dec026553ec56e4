"""Draws one step as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.peers import SGLang
from benchmarks.report import duration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.measure import Timing

_STEP = {
    "SGLang in process": (SGLang.name, "blocking", "C3"),
    "service over gRPC, after the forward pass": ("service, grpc", "blocking", "C0"),
    "service on the same host, after the forward pass": ("service, local", "blocking", "C2"),
    "same algorithms in process, no service": ("built-ins in process", "blocking", "C7"),
    "service over gRPC, during the forward pass": ("service, grpc", "exposed", "C0"),
    "service on the same host, during the forward pass": ("service, local", "exposed", "C2"),
}


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
