"""Writes deploy/grafana/logitport.json: `make dashboard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.grafana.panels import ROWS
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueTextMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

if TYPE_CHECKING:
    from deploy.grafana.panels import Panel

PATH = Path(__file__).with_name("logitport.json")

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = 8
_STAT_HEIGHT = 4


def text() -> str:
    """The content of the file."""
    return json.dumps(_dashboard().build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _dashboard() -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard("logitport")
        .uid("logitport")
        .description("Servers of logitport: errors, time of steps and processors, waits, workers.")
        .tags(["logitport"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("job", "Job", "label_values(logitport_build_info, job)"))
        .with_variable(_variable("instance", "Instance", 'label_values(logitport_build_info{job=~"$job"}, instance)'))
        .with_variable(
            _variable(
                "processor",
                "Processor",
                'label_values(logitport_rows_applied_total{job=~"$job",instance=~"$instance"}, processor)',
            )
        )
    )
    number = 0
    for row in ROWS:
        number += 1
        made.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made.with_panel(_panel(panel).id(number))
    return made


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    """A variable with several values; by default all, also of series without the label."""
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query({"query": query, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    made = _stat(panel) if panel.kind == "stat" else _graph(panel)
    steps = [Threshold(value=None, color=panel.base)]
    steps += [Threshold(value=value, color=color) for value, color in panel.limits]
    made = (
        made.title(panel.title)
        .description(panel.description)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(panel.width)
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    )
    if panel.decimals is not None:
        made.decimals(panel.decimals)
    for expr, legend in panel.queries:
        query = prometheus.Dataquery().datasource(_SOURCE).expr(expr).legend_format(legend or "__auto")
        query.ref_id(chr(ord("A") + panel.queries.index((expr, legend))))
        made.with_target(query.instant() if panel.kind == "stat" else query.range())
    return made


def _stat(panel: Panel) -> stat.Panel:
    mode = BigValueTextMode.VALUE_AND_NAME if panel.queries[0][1] else BigValueTextMode.VALUE
    last = common.ReduceDataOptions().calcs(["lastNotNull"])
    made = stat.Panel().height(_STAT_HEIGHT).color_mode(BigValueColorMode.BACKGROUND)
    return made.text_mode(mode).reduce_options(last)


def _graph(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.TABLE)
    legend.placement(LegendPlacement.BOTTOM).calcs(["lastNotNull", "max"])
    shown = GraphTresholdsStyleMode.DASHED if panel.limits else GraphTresholdsStyleMode.OFF
    return (
        timeseries.Panel()
        .height(_HEIGHT)
        .fill_opacity(10)
        .legend(legend)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .thresholds_style(common.GraphThresholdsStyleConfig().mode(shown))
    )


if __name__ == "__main__":
    PATH.write_text(text())
