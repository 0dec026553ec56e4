"""Draws the check of the capacity, and how long steps wait after a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.fleet_sim.costs import Measured
    from benchmarks.fleet_sim.results import Simulated


def draw(measured: Measured, simulated: Simulated, path: Path) -> None:
    """Draw two panels: steps of one core against its engines, and the longest wait after the loss of a server."""
    mpl.use("Agg")
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_check(left, measured, simulated)
    _draw_losses(right, simulated)
    figure.savefig(path, dpi=80, metadata={"Software": None})


def _draw_check(panel: Axes, measured: Measured, simulated: Simulated) -> None:
    for levels, label, style in ((measured.levels, "measured", "o-"), (simulated.levels, "simulated", "s--")):
        engines = [level.engines for level in levels]
        panel.plot(engines, [level.p99 * 1e3 for level in levels], f"C0{style}", label=f"p99, {label}")
        panel.plot(engines, [level.p50 * 1e3 for level in levels], f"C2{style}", label=f"p50, {label}")
    period = 1e3 / measured.check_steps_a_second
    panel.axhline(period, color="C7", linewidth=1)
    panel.annotate("forward pass", (measured.levels[0].engines, period), textcoords="offset points", xytext=(0, 3))
    panel.set_yscale("log")
    panel.set_xlabel(f"engines of {measured.check_rows} rows, {measured.check_steps_a_second:.0f} steps/s, on a core")
    panel.set_ylabel("ms of a step")
    panel.legend(frameon=False, fontsize="small")


def _draw_losses(panel: Axes, simulated: Simulated) -> None:
    losses = [loss for loss in simulated.losses if loss.case == "one server"]
    for place, history in enumerate(sorted({loss.history for loss in losses})):
        of_history = [loss for loss in losses if loss.history == history]
        bars = [position + 0.4 * place for position in range(len(of_history))]
        panel.bar(bars, [loss.longest for loss in of_history], 0.36, color=f"C{place}", label=f"{history:,} ids")
        panel.set_xticks([bar - 0.2 * place for bar in bars], [f"{loss.engines:,}" for loss in of_history])
    panel.set_xlabel("engines of the fleet")
    panel.set_ylabel("s, longest wait after\nthe loss of a server")
    panel.legend(frameon=False, fontsize="small")
