"""Capacity by formula: engines of a core, servers of a fleet, and what directories and memory must bear."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

from logitport.documents import MAX_BYTES as MAX_DOCUMENT_BYTES
from logitport_server.config import ServerConfig
from logitport_server.fleet.directory import document
from logitport_server.registry.poller import INTERVAL_SECONDS as POLL_SECONDS
from logitport_server.transports.connection_limit import connection_limit

if TYPE_CHECKING:
    from benchmarks.fleet_sim.costs import Costs
    from logitport_server.processes.report import Report

# Share of a core that steps may use: with all servers, and after the loss of one or of a tenth.
TARGET, AFTER_LOSS = 0.6, 0.8
# An A record that refers to the name of the question, and the header with the question: RFC 1035, 3.2.1 and 4.1.
_RECORD_BYTES, _HEADER_BYTES = 16, 60
# Largest answer over UDP without fragments, the default of resolvers since the DNS Flag Day 2020.
UDP_BYTES = 1232
MAX_RECORDS = (UDP_BYTES - _HEADER_BYTES) // _RECORD_BYTES
MAX_CONNECTIONS = connection_limit(ServerConfig(), sys.maxsize)
KEEPALIVE_SECONDS: float = ServerConfig.model_fields["keepalive_seconds"].get_default()

# The session age of the table of directories, and the engines of its lists.
_SESSION_AGE = 3600.0
_LISTS = (100, 1000, 10_000, 100_000)


@dataclass(frozen=True)
class EngineKind:
    """An engine's batch.

    Attributes:
        rows: requests, of one row each.
        history: ids of each request.
        steps_a_second: of an engine that does not wait for edits.
    """

    rows: int = 64
    history: int = 4096
    steps_a_second: float = 25.0


# The engines of the simulation, and those with long histories.
KIND = EngineKind()
LONG = EngineKind(history=32_768)


def list_of(servers: int) -> bytes:
    """Return the list that a fleet on Ray serves for this many servers."""
    hosts = [f"10.0.{number // 250}.{number % 250 + 1}" for number in range(servers)]
    return document(
        cast("Report", SimpleNamespace(address=f"{host}:50051", metrics_address=f"{host}:9090", state="ready"))
        for host in hosts
    )


def max_addresses() -> int:
    """Return the number of addresses that fit the longest list that clients read."""
    return 1000 * MAX_DOCUMENT_BYTES // len(list_of(1000))


def engine_cores(costs: Costs, kind: EngineKind) -> float:
    """The cores that the steps of one engine use."""
    return kind.steps_a_second * costs.step_seconds(kind.rows)


def engines_of_a_core(costs: Costs, kind: EngineKind, utilization: float = 1.0) -> float:
    """How many engines a core serves at this utilization."""
    return utilization / engine_cores(costs, kind)


def servers_needed(costs: Costs, kind: EngineKind, engines: int) -> int:
    """The least number of servers with the target utilization, also after a loss."""
    cores = engines * engine_cores(costs, kind)
    servers = max(2, math.ceil(cores / TARGET))
    while cores / (servers - lost_of(servers)) > AFTER_LOSS:
        servers += 1
    return servers


def lost_of(servers: int) -> int:
    """The servers whose loss is provided for: a tenth, and at least one."""
    return max(1, servers // 10)


class Directory(NamedTuple):
    """Load of a directory and of the servers of one list.

    Attributes:
        engines, servers: of the fleet, or of the cell.
        document_bytes: size of the document.
        dns_bytes: size of the answer for a name with all addresses.
        reads: reads of the document a second, at this session age.
        load_calls: GetLoad calls a second and server, at this session age.
        lost_reads: reads after the loss of one server.
        lost_load_calls: GetLoad calls after the loss of one server, for each of the others.
        polls: look-ups of the common registry a second.
    """

    engines: int
    servers: int
    document_bytes: int
    dns_bytes: int
    reads: float
    load_calls: float
    lost_reads: int
    lost_load_calls: float
    polls: float


def directories(costs: Costs, kind: EngineKind = KIND) -> list[Directory]:
    """Compute the load of lists of several sizes."""
    return [_directory(costs, kind, engines) for engines in _LISTS]


def _directory(costs: Costs, kind: EngineKind, engines: int) -> Directory:
    servers = servers_needed(costs, kind, engines)
    lost = math.ceil(engines / servers)
    return Directory(
        engines,
        servers,
        len(list_of(servers)),
        _HEADER_BYTES + servers * _RECORD_BYTES,
        engines / _SESSION_AGE,
        2 * engines / _SESSION_AGE / servers,
        lost,
        2 * lost / (servers - 1),
        servers / POLL_SECONDS,
    )


def memory(costs: Costs, kind: EngineKind, engines: float) -> float:
    """Bytes of a server with this many engines, beside what it takes without any."""
    requests = engines * kind.rows
    return engines * costs.session_bytes + requests * (costs.request_bytes + costs.id_bytes * kind.history)
