"""The alerts of deploy/prometheus: each fires for its reason and no other, and finds its series on a real server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from logitport import Client, LogitportError, Request
from tests.fleet.prometheus import needs_prometheus, run_prometheus, without_threshold
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}

pytestmark = needs_prometheus

LABELS = 'job="logitport",instance="a:1"'
OTHER_LABELS = 'job="logitport",instance="a:2"'


def histogram(name: str, seconds: float, labels: str = LABELS, count: int = 10) -> dict[str, str]:
    """Series of a histogram whose observations, `count` a minute, take longer than all buckets below `seconds`."""
    bounds = (0.001, 0.1, 0.25, 0.5, 1.0)
    buckets = {
        f'{name}_bucket{{{labels},le="{bound}"}}': f"0+{count}x60" if bound >= seconds else "0+0x60" for bound in bounds
    }
    return {
        **buckets,
        f'{name}_bucket{{{labels},le="+Inf"}}': f"0+{count}x60",
        f"{name}_count{{{labels}}}": f"0+{count}x60",
    }


def one_of_two_servers(name: str, seconds: float, labels: str = "") -> dict[str, str]:
    """Series of two servers, of which the one with few observations is slow."""
    busy = histogram(name, 0.001, f"{OTHER_LABELS}{labels}", 10_000)
    return {**busy, **histogram(name, seconds, f"{LABELS}{labels}")}


def healthy() -> dict[str, str]:
    """Series of a server without problems, one value a minute for an hour."""
    return {
        f"up{{{LABELS}}}": "1+0x60",
        **histogram("logitport_event_loop_lag_seconds", 0.001),
        **histogram("logitport_step_seconds", 0.001, f'{LABELS},part="edits"'),
        f'logitport_requests_failed_total{{{LABELS},processor="dry",code="STATE_LOST"}}': "0+1x60",
        f'logitport_requests_refused_total{{{LABELS},code="INVALID_ARGUMENT"}}': "0+1x60",
        f'logitport_calls_refused_total{{{LABELS},code="NOT_AUTHENTICATED"}}': "0+1x60",
        f"logitport_workers_lost_total{{{LABELS}}}": "0+0x29 1+0x30",
        f"logitport_processors_quarantined{{{LABELS}}}": "0+0x60",
        f"logitport_requests_pending{{{LABELS}}}": "10+0x60",
        f"logitport_worker_gpus_refused_total{{{LABELS}}}": "0+0x60",
        f"logitport_ready{{{LABELS}}}": "0+0x5 1+0x55",
        f"logitport_store_up{{{LABELS}}}": "1+0x60",
    }


REASONS: dict[str, dict[str, str]] = {
    "LogitportDown": {f"up{{{LABELS}}}": "0+0x60"},
    "LogitportNotReady": {f"logitport_ready{{{LABELS}}}": "0+0x60"},
    "LogitportEventLoopStopped": {f"logitport_event_loop_lag_seconds_count{{{LABELS}}}": "0+10x20 200+0x40"},
    "LogitportEventLoopLate": one_of_two_servers("logitport_event_loop_lag_seconds", 0.5),
    "LogitportStepsSlow": one_of_two_servers("logitport_step_seconds", 0.5, ',part="edits"'),
    "LogitportRequestsFail": {
        f'logitport_requests_failed_total{{{LABELS},processor="dry",code="STATE_LOST"}}': "0+60x60"
    },
    "LogitportRequestsRefused": {f'logitport_requests_refused_total{{{LABELS},code="INVALID_ARGUMENT"}}': "0+60x60"},
    "LogitportCallersRefused": {f'logitport_calls_refused_total{{{LABELS},code="NOT_AUTHENTICATED"}}': "0+60x60"},
    "LogitportWorkersLost": {f"logitport_workers_lost_total{{{LABELS}}}": "0+1x60"},
    "LogitportProcessorQuarantined": {f"logitport_processors_quarantined{{{LABELS}}}": "1+0x60"},
    "LogitportAdmissionsPending": {f"logitport_requests_pending{{{LABELS}}}": "100+0x60"},
    "LogitportStoreDown": {f"logitport_store_up{{{LABELS}}}": "0+0x60"},
    "LogitportGpuRefused": {f"logitport_worker_gpus_refused_total{{{LABELS}}}": "0+0x29 1+0x30"},
}


def test_each_alert_has_a_reason_here() -> None:
    assert REASONS.keys() == ALERTS.keys()


@pytest.mark.parametrize("reason", [*REASONS, "nothing"])
def test_an_alert_fires_for_its_reason_and_no_other(reason: str, tmp_path: Path) -> None:
    """`promtool test rules` compares the number of firing alerts after 40 minutes."""
    series = {**healthy(), **REASONS.get(reason, {})}
    if reason == "LogitportDown":  # a server that is down has no other series
        series = REASONS[reason]
    firing = [
        {
            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
            "eval_time": "40m",
            "exp_samples": [{"labels": "{}", "value": int(alert == reason)}],
        }
        for alert in ALERTS
    ]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": firing,
            }
        ],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    found = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture
def prometheus(
    serving: Callable[..., AbstractContextManager[RunningServer]], tmp_path: Path
) -> Iterator[Callable[[str], list[Any]]]:
    """A Prometheus that scrapes a busy server. Returns a function that makes a query."""
    with (
        serving("--metrics-listen", "127.0.0.1:0", "--enable-custom-logit-processor") as server,
        run_prometheus(server.metrics_url, RULES, tmp_path) as query,
    ):
        use(server)
        yield query


def use(server: RunningServer) -> None:
    """Make steps, and a request that is refused."""
    with Client(server.target) as client, client.session(vocab_size=64) as session:
        handle = session.add(Request([1], processors=[("min_tokens", {"min_tokens": 2, "stop_token_ids": [3]})]))
        for token_id in range(5):
            session.step({handle: [token_id]}).apply(np.zeros((1, 64), np.float32), check=False)
        with pytest.raises(LogitportError):
            session.add(Request([1], processors=[("nothing", {})]))


def test_the_selectors_find_series_on_a_real_server(prometheus: Callable[[str], list[Any]]) -> None:
    """Without their thresholds, all expressions have a value; but for failures, which this server does not have."""
    # Series of failures, and of GPUs.
    absent = ("LogitportRequestsFail", "LogitportGpuRefused")
    expressions = {name: without_threshold(alert["expr"]) for name, alert in ALERTS.items()}
    for name in ALERTS.keys() - set(absent):  # a rate needs two scrapes
        wait_until(lambda name=name: bool(prometheus(expressions[name])), lambda name=name: expressions[name])
    for name in absent:
        assert prometheus(expressions[name]) == [], name
    for name in ALERTS:
        assert prometheus(f'ALERTS{{alertname="{name}",alertstate="firing"}}') == [], name
