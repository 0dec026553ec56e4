"""The dashboard and the alerts of deploy: each finds its series, and each alert fires for its reason and no other."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest
import yaml

from logitport import Client, EditProcessor, EditRequest, LogitportError, Request, RowEdits
from logitport_server.access import new_token
from tests.conftest import free_address
from tests.programs.runtime import build
from tests.toy_processors import AddOne, DenyHistory, FailsAfterZero
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer


pytestmark = pytest.mark.skipif(
    None in (shutil.which("promtool"), shutil.which("prometheus")),
    reason="needs Prometheus (apt-get install prometheus)",
)


@contextmanager
def run_prometheus(metrics_url: str, rules: Path, folder: Path) -> Iterator[Callable[[str], list[Any]]]:
    """Scrape these metrics as job "logitport", five times a second.

    Yields:
        A function that makes a query, and returns its series with their present values. It fails if the query does.
    """
    scrape = {
        "job_name": "logitport",
        "scrape_interval": "200ms",
        "static_configs": [{"targets": [metrics_url.split("/")[2]]}],
    }
    config = {"global": {"evaluation_interval": "1s"}, "scrape_configs": [scrape], "rule_files": [str(rules)]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = free_address()
    log = folder / "prometheus.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stderr=output,
        )
    try:

        def query(expression: str) -> list[Any]:
            parameters = urllib.parse.urlencode({"query": expression})
            with urllib.request.urlopen(f"http://{address}/api/v1/query?{parameters}", timeout=60) as response:
                answer = orjson.loads(response.read())
            assert answer["status"] == "success"
            result: list[Any] = answer["data"]["result"]
            return result

        def is_up() -> bool:
            try:
                return bool(query('up{job="logitport"} == 1'))
            except OSError:
                return False

        wait_until(is_up, log.read_text)
        yield query
    finally:
        process.kill()
        process.wait()


def without_threshold(expression: str) -> str:
    """An alert's expression without the comparison at its end."""
    before, _, _threshold = expression.rpartition(">")
    return before or expression.rpartition("==")[0]


RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}

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


VOCAB = 64
DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "logitport.json").read_text())
# By the panel's number: two panels may have one title.
PANELS = {panel["id"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
# Servers without a GPU do not have these.
OF_A_GPU = re.compile(r"logitport_worker_(logits|gpus_refused)_total")
# Grafana's value of `$__rate_interval` is four times the scrape interval or more.
VARIABLES = {"$job": ".*", "$instance": ".*", "$processor": ".*", "$__rate_interval": "5s"}


class Exits(EditProcessor):
    """Ends its worker, and is quarantined."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(7)


class Load:
    """Uses a server until the end of the context: steps, failures, refusals, replays, admissions in the background."""

    def __init__(self, target: str, token: str) -> None:
        self.error: BaseException | None = None
        self._target = target
        self._token = token
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Client(self._target, token=self._token) as client, Client(self._target, token="wrong") as stranger:
                self._lose_a_worker(client)
                while not self._ended.is_set():
                    self._use(client)
                    with suppress(LogitportError):
                        stranger.processors()
                    with suppress(LogitportError):
                        client.servers()[0].unquarantine("without/permission")
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def _lose_a_worker(self, client: Client) -> None:
        with client.session(vocab_size=VOCAB) as session:
            handle = session.add(Request([1], processors=[(Exits, {})]))
            session.step({handle: [2]}).apply(np.zeros((1, VOCAB), np.float32), check=False)

    def _use(self, client: Client) -> None:
        chains: list[list[Any]] = [
            [("min_tokens", {"min_tokens": 2, "stop_token_ids": [3]})],
            [(DenyHistory, {}), ("bad_words", {"bad_words_ids": [[5]]})],
            [(AddOne, {}), (build.temperature().program, {"temperature": 0.5})],
        ]
        logits = np.zeros((1, VOCAB), np.float32)
        with client.session(vocab_size=VOCAB, programs="off") as session:
            handles = [session.add(Request([1], processors=chain)) for chain in chains]
            handles.append(session.begin_add([Request([1], processors=[(DenyHistory, {})])])[0].result(60))
            handles.append(session.add(Request([1], output_token_ids=[2, 3], processors=chains[0])))
            handles.append(session.add(Request([1], processors=[(FailsAfterZero, {})])))
            with suppress(LogitportError):
                session.add(Request([1], processors=[("nothing", {})]))
            for token_id in (2, 0, 4):
                rows = np.zeros((len(handles), VOCAB), np.float32)
                session.step({handle: [token_id] for handle in handles}).apply(rows, check=False)
        client.apply(logits, [Request([1], processors=chains[0])])


@pytest.fixture(scope="module")
def query(
    serving: Callable[..., AbstractContextManager[RunningServer]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], list[Any]]]:
    """A query of a Prometheus that scrapes a server under load."""
    folder = tmp_path_factory.mktemp("prometheus")
    token, grant = new_token("engine", ["apply", "register"])
    (folder / "tokens").write_text(grant.line)
    options = ("--quarantine-after", "1", "--tokens", str(folder / "tokens"))
    with (
        serving(*options, "--enable-custom-logit-processor", "--metrics-listen", "127.0.0.1:0") as server,
        run_prometheus(server.metrics_url, RULES, folder) as made,
        Load(server.target, token) as load,
    ):

        def checked(expression: str) -> list[Any]:
            if load.error is not None:
                raise load.error
            return made(expression)

        yield checked


def expression_of(target: dict[str, Any]) -> str:
    expression: str = target["expr"]
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def numbers(series: list[Any]) -> list[float]:
    """The values of series; without those that are no numbers, such as a quantile of nothing."""
    values = [float(one["value"][1]) for one in series]
    return [value for value in values if not math.isnan(value)]


@pytest.mark.parametrize("number", PANELS, ids=lambda number: f"{number}-{PANELS[number]['title']}")
def test_a_panel_has_values(query: Callable[[str], list[Any]], number: int) -> None:
    for target in PANELS[number]["targets"]:
        expression = expression_of(target)
        if OF_A_GPU.search(expression):
            assert query(expression) == []
            continue
        legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))

        def is_found(expression: str = expression, legend: set[str] = legend) -> bool:
            found = query(expression)
            return bool(numbers(found)) and legend <= {label for one in found for label in one["metric"]}

        wait_until(is_found, lambda expression=expression: f"{expression}: {query(expression)}")
        for name in re.findall(r"\b(?:logitport|process)_\w+(?=\{)|\bup(?=\{)", expression):
            assert query(f"count({name})"), name


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_finds_its_series(query: Callable[[str], list[Any]], name: str) -> None:
    expression = without_threshold(ALERTS[name]["expr"])
    if OF_A_GPU.search(expression):
        assert query(expression) == []
    else:
        wait_until(lambda: numbers(query(expression)), lambda: expression)


def test_the_quarantined_processor_is_an_alert(query: Callable[[str], list[Any]]) -> None:
    alert = 'ALERTS{alertname="LogitportProcessorQuarantined",alertstate="firing"}'
    wait_until(lambda: query(alert), lambda: alert)
