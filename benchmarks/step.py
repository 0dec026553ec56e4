"""The published results of `make bench`, with one step of the mix in README.md: its picture, and the text below it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.publish import bar_table, duration, tables, where
from benchmarks.report import Report

PICTURE = "docs/step.png"
_EXPECTED = ("processor", "rows", "history")  # sections of the tables in docs/performance.md
_BARS = {
    "SGLang in process": ("SGLang", "C3"),
    "service over gRPC, after the forward pass": ("gRPC", "C0"),
    "service on the same host, after the forward pass": ("local", "C2"),
    "same algorithms in process, no service": ("our built-ins, no service", "C7"),
    "service over gRPC, during the forward pass": ("gRPC, exposed", "C0"),
    "service on the same host, during the forward pass": ("local, exposed", "C2"),
}


def texts(report: Report) -> dict[str, str]:
    """What `make bench-publish` writes, by the names of the markers."""
    chosen = [row for row in report.rows if row.section in _EXPECTED]
    return {
        "bench": bar_table(report),
        "bench-cases": tables(report),
        "bench-expect": f"{tables(replace(report, rows=chosen))}\n{where(report)}\n",
        "bench-step": caption(report),
    }


def draw(report: Report, path: Path) -> None:
    """Draw a bar for each contestant as PNG; medians on a logarithmic scale, with their values."""
    import matplotlib as mpl  # not needed for the texts
    from matplotlib.figure import Figure

    mpl.use("Agg")
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots()
    medians = [_times(report)[column] for column, _ in _BARS.values()]
    bars = axes.barh(list(_BARS), [median / 1e3 for median in medians], color=[color for _, color in _BARS.values()])
    axes.bar_label(bars, [duration(median) for median in medians], padding=4)
    axes.set_xscale("log")
    axes.set_xlabel("ms on the critical path of one step (logarithmic)")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def caption(report: Report) -> str:
    """Return the text below the picture: results for and against the service."""
    times = {column: duration(median) for column, median in _times(report).items()}
    bars = [line for line in report.bar if line.bar is not None]
    met = sum(line.met for line in bars)
    return f"""\
![Time of the processors of one step on the engine's critical path]({PICTURE})

64 rows, histories of 4096 ids, a vocabulary of 151,936, three built-ins; {report.machine.cpu}, {report.machine.cores} \
cores, {report.started[:10]}.

1. If the edits are computed during a long enough forward pass, the engine waits \
{times["local, exposed"]} after it; SGLang's own processors take {times["SGLang"]}.
2. Most of the gain comes from incremental algorithms: in the engine's process, without a service, they take \
{times["our built-ins, no service"]}; the service without overlap takes {times["local"]}.
3. This run met {met} of the project's {len(bars)} targets and missed {len(bars) - met}; \
[the results](benchmarks/RESULTS.md) list them, the reasons, and the cases where logitport is slower.
"""


def _times(report: Report) -> dict[str, float]:
    """Medians of the mix for 64 rows."""
    return next(row.times for row in report.rows if (row.section, row.case) == ("rows", "64"))
