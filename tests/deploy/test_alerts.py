"""The alerts of deploy/prometheus use metrics that servers export, and jobs that the docs name."""

from __future__ import annotations

import re
from pathlib import Path

from tests.deploy.exported_metrics import exported

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"


def test_their_metrics_exist() -> None:
    metrics = re.findall(r"\b(logitport_\w+)\{", ALERTS.read_text())
    assert len(set(metrics)) >= 10
    assert {*metrics} <= exported()


def test_every_metric_is_of_the_job_of_the_docs() -> None:
    selected = re.findall(r"\b(?:up|logitport_\w+)\{(.*?)\}", ALERTS.read_text())
    assert selected
    assert all(labels.startswith('job="logitport"') for labels in selected)
