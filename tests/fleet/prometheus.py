"""A real Prometheus that scrapes a server. Debian's package has it."""

from __future__ import annotations

import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import yaml

from tests.conftest import free_address
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

needs_prometheus = pytest.mark.skipif(
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
