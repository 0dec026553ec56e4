"""Each panel of the dashboard, and each alert, finds its series in a real Prometheus, of a server under load."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, EditProcessor, EditRequest, LogitportError, Request, RowEdits
from logitport_server.access import new_token
from tests.fleet.prometheus import needs_prometheus, run_prometheus, without_threshold
from tests.fleet.test_alerts import ALERTS, RULES
from tests.programs.runtime import build
from tests.toy_processors import AddOne, DenyHistory, FailsAfterZero
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.conftest import RunningServer

pytestmark = needs_prometheus

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


def test_the_query_of_an_unknown_metric_has_no_series(query: Callable[[str], list[Any]]) -> None:
    """The tests above would fail for it."""
    assert query('sum by (instance) (rate(logitport_unknown_total{job=~".*"}[5s]))') == []
