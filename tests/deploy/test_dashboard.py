"""deploy/grafana/logitport.json is what its generator makes, and uses metrics that exist."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("grafana_foundation_sdk")  # needs Python 3.11

from deploy.grafana import dashboard

from tests.deploy.exported_metrics import exported

DASHBOARD = json.loads(dashboard.PATH.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Series that Prometheus itself has, and prometheus_client.
OTHERS = {"up", "ALERTS"}


def names(expression: str) -> set[str]:
    """The metrics of an expression."""
    return set(re.findall(r"\b(up|ALERTS|logitport_\w+|process_\w+)\{", expression))


def test_the_file_is_what_the_generator_makes() -> None:
    assert dashboard.PATH.read_text() == dashboard.text(), "run `make dashboard`"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_is_complete(panel: dict[str, object]) -> None:
    assert panel["description"]
    defaults = panel["fieldConfig"]["defaults"]  # type: ignore[index]
    assert defaults["unit"]
    assert defaults["thresholds"]["steps"]
    for target in panel["targets"]:  # type: ignore[attr-defined]
        assert names(target["expr"])
        assert names(target["expr"]) <= exported() | OTHERS


def test_panels_have_numbers_of_their_own() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_variables() -> None:
    variables = {one["name"]: one for one in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", "processor"]
    for name in ("job", "instance", "processor"):
        assert names(variables[name]["query"]["query"] + "{") <= exported()
        assert any(f"${name}" in target["expr"] for panel in PANELS for target in panel["targets"])
