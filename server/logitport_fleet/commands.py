"""`logitport ray`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Column, Table

from logitport.system.installation import how_to_install
from logitport_fleet.options import FleetOptions, parse_serve_options, require_token_mode
from logitport_server.config.option import Metavar
from logitport_server.config.units import Seconds
from logitport_server.lifecycle.start_errors import StartupError

if TYPE_CHECKING:
    from types import ModuleType

    from logitport_fleet.controller import FleetStatus

_ADDRESS = Field("", description="HOST:PORT of the Ray cluster; RAY_ADDRESS, or the cluster of this machine if not set")
_NAMESPACE = Field("logitport", min_length=1, description="Ray namespace of the fleet")

ClusterAddress = Annotated[str, Metavar("ADDRESS")]


class Up(FleetOptions):
    """Start a fleet of servers on a Ray cluster, or change the size of the one that runs. The fleet goes on afterwards.

    Give the options of `logitport serve` for all servers after "--". Its variables in the environment of the Ray nodes
    apply, too.
    """

    address: ClusterAddress = _ADDRESS
    timeout_seconds: Seconds = Field(300.0, gt=0, description="how long to wait for the servers")

    def run(self) -> None:
        options = FleetOptions.model_validate(self.model_dump(exclude={"address", "timeout_seconds"}))
        parse_serve_options(options.serve_options)
        launch = _connect(self.address, self.namespace)
        _print(launch.up(options, self.timeout_seconds, lambda url: print(f"list of servers: {url}", flush=True)))  # noqa: T201


class ShowFleet(BaseModel):
    """Show the servers of a fleet."""

    address: ClusterAddress = _ADDRESS
    namespace: str = _NAMESPACE

    def run(self) -> None:
        current = _connect(self.address, self.namespace).status(self.namespace)
        print(f"list of servers: {current.url}")  # noqa: T201
        _print(current)


class Down(BaseModel):
    """End a fleet: its servers finish their steps, as after SIGTERM, and their sessions end."""

    address: ClusterAddress = _ADDRESS
    namespace: str = _NAMESPACE
    now: bool = Field(False, description="kill the servers, instead of letting them finish")

    def run(self) -> None:
        count = _connect(self.address, self.namespace).down(self.namespace, now=self.now)
        print(f"ended {count} actors" if count else "no fleet runs")  # noqa: T201


def _connect(address: str, namespace: str) -> ModuleType:
    """Connect to the cluster. Returns the functions that need Ray."""
    require_token_mode(os.environ, "in the environment of this command")
    try:
        from logitport_fleet import launch
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise StartupError(
            f"`logitport ray` needs Ray, which is not installed; install it {how_to_install('server', 'ray')}"
        ) from None
    launch.connect(address or os.environ.get("RAY_ADDRESS", "auto"), namespace)
    return launch


def _print(current: FleetStatus) -> None:
    table = Table("server", Column("address", overflow="fold"), "state", "pid", "restarts", "sessions")
    for index, report in sorted(current.reports.items()):
        cells = (index, report.address, report.state, report.pid or "", report.restarts, report.load.sessions)
        table.add_row(*map(str, cells))
    Console().print(table)
    seconds = current.load.step_seconds
    print(f"servers that the fleet should have: {current.desired}; mean time of a step: {1000 * seconds:.2f} ms")  # noqa: T201
    for index, report in sorted(current.reports.items()):
        if report.error:
            print(f"\nserver {index} has ended with:\n{report.error}")  # noqa: T201
    if current.error:
        print(current.error)  # noqa: T201
