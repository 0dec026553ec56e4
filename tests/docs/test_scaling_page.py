"""docs/scaling.md: its example follows from its costs. Limits here and in benchmarks/SCALING.md are the code's."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

from logitport.servers.documents import MAX_BYTES
from logitport_fleet.directory import document
from logitport_server.config import ServerConfig
from logitport_server.registry.poller import INTERVAL_SECONDS
from tests.docs.pages import read

PAGE, REASONS = read("docs/scaling.md"), read("benchmarks/SCALING.md")


def test_the_example_follows_from_the_formula() -> None:
    (microseconds,) = re.findall(r"\| a step of 256 rows over gRPC, one engine without pauses \| (\d+) µs", PAGE)
    engine = 25 * 2 * int(microseconds) / 1e6
    busy, cores = 1000 * engine, math.ceil(1000 * engine / 0.6)
    servers = math.ceil(cores / 8)
    text = " ".join(PAGE.split())
    assert f"is {busy:.1f} cores. That is {cores} cores at 0.6, or {servers} servers on hosts with 8 cores." in text
    assert f"the other {servers - 1} have a utilization of {busy / (servers - 1) / 8:.2f}." in text
    assert f"One core serves {int(0.6 / engine)} such engines" in PAGE


def test_the_limits_are_those_of_the_code() -> None:
    fields = ServerConfig.model_fields
    for page in (PAGE, REASONS):
        assert f"`--max-sessions-per-principal` is {fields['max_sessions_per_principal'].default}." in page
    assert INTERVAL_SECONDS == 1.0  # one poll a second of each server
    reports: list[Any] = [
        SimpleNamespace(address=f"10.0.0.{host}:50051", metrics_address=f"10.0.0.{host}:9090", state="ready")
        for host in range(100, 200)
    ]
    addresses = f"for {100 * MAX_BYTES // len(document(reports)) // 1000 * 1000:,} addresses"
    assert addresses in PAGE
    assert addresses in REASONS
