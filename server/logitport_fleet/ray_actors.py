"""The actors of a fleet: one for each server, and one that controls them and serves the list of addresses.

Actors only supervise. Steps go from the engine to the server directly: a call of an actor takes longer than a step.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
import ray.util
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError

from logitport_fleet.actor_child import child_environment, environment_at_start, leave_background
from logitport_fleet.controller import Controller, FleetStatus
from logitport_fleet.directory import PATH, Directory
from logitport_fleet.load import read_load
from logitport_fleet.options import parse_serve_options, require_token_mode
from logitport_fleet.scaling import FleetLoad
from logitport_server.addresses import join
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.processes.child_process import child_command
from logitport_server.processes.server_report import ServerReport
from logitport_server.processes.supervisor import Rules, Supervisor, end_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from logitport_fleet.options import FleetOptions
    from logitport_server.config import ServerConfig

logger = logging.getLogger(__name__)

# The namespace may be shared with other programs.
CONTROLLER = "logitport-controller"
_SERVER = "logitport-server-"
_TICK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
# Both actors answer while they work, and are started again without limit: by Ray, on another node if theirs is lost.
_COMMON = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 8, "lifetime": "detached"}


class ServerActor:
    """Supervises one server on its node. The server ends with it."""

    def __init__(self, options: FleetOptions, index: int) -> None:
        _prepare_process()
        addresses = options.addresses(index, ray.util.get_node_ip_address())
        self._supervisor: Supervisor | None = None
        self._report = ServerReport(addresses.clients, addresses.metrics)
        try:
            config = parse_serve_options(options.serve_options)
        except StartupError as error:
            # An actor with a constructor that fails is not started again, and does not show the reason.
            self._report = replace(self._report, state="failed", error=str(error))
            return
        self._supervisor = Supervisor(
            addresses.configure(config),
            Rules(unhealthy_seconds=options.unhealthy_seconds, end_seconds=end_seconds(config)),
            self._report,
            command=child_command(addresses.clients, "logitport_fleet.actor_child"),
            environment=child_environment(os.environ, environment_at_start()),
            load=partial(read_load, addresses.metrics),
        )
        _start_thread("logitport-supervisor", self._supervisor.run)

    def report(self) -> ServerReport:
        """Return the state of the server."""
        return self._report if self._supervisor is None else self._supervisor.report

    def drain(self) -> None:
        """Let the server move its sessions, and end."""
        if self._supervisor is not None:
            self._supervisor.drain()


class ControllerActor:
    """Runs the controller, and serves the list."""

    def __init__(self, options: FleetOptions) -> None:
        _prepare_process()
        self._options = options
        self._host = options.host or ray.util.get_node_ip_address()
        self._controller: Controller | None = None
        self._certificate: tuple[Path, Path] | None = None
        self._error = ""
        self._is_stopping = False
        try:
            require_token_mode(os.environ, "in the environment of the Ray cluster")
            config = parse_serve_options(options.serve_options)
        except StartupError as error:
            self._error = str(error)
            return
        if config.tls_cert is not None and config.tls_key is not None:
            self._certificate = config.tls_cert, config.tls_key
        continues = ray.get_runtime_context().was_current_actor_reconstructed
        _start_thread("logitport-controller", partial(self._run, config, continues))

    def options(self) -> FleetOptions:
        """Return what the fleet was started with."""
        return self._options

    def status(self) -> FleetStatus:
        """Return the state of the fleet at the last tick."""
        scheme = "http" if self._certificate is None else "https"
        url = f"{scheme}://{join(self._host, self._options.list_port)}{PATH}"
        if self._controller is None:
            return FleetStatus(url, self._options.servers, FleetLoad(), {}, self._error)
        controller = self._controller
        return FleetStatus(url, controller.desired, controller.load, controller.reports, self._error)

    def stop(self) -> None:
        """Drain all servers. May be called more than once."""
        self._is_stopping = True

    def _run(self, config: ServerConfig, continues: bool) -> None:
        directory = self._open_directory()
        self._controller = Controller(
            self._options,
            RayServers(self._options),
            directory.publish,
            end_seconds(config),
            continues=continues,
        )
        while True:
            if self._is_stopping:
                self._controller.stop()
            self._controller.tick()
            directory.refresh_certificate()
            time.sleep(_TICK_SECONDS)

    def _open_directory(self) -> Directory:
        while True:
            try:
                directory = Directory(self._host, self._options.list_port, self._certificate)
            except (OSError, StartupError) as error:
                self._error = (
                    f"cannot serve the list of addresses on {join(self._host, self._options.list_port)}: {error}; "
                    "choose another --list-port, or check --tls-cert and --tls-key"
                )
                logger.error("%s", self._error)
                time.sleep(_TICK_SECONDS)
            else:
                self._error = ""
                return directory


class RayServers:
    """The servers of a fleet, as named actors. Finds those that exist already."""

    def __init__(self, options: FleetOptions) -> None:
        self._options = options
        self._pending: dict[int, Any] = {}
        self._last: dict[int, ServerReport] = {}
        self._actors = {
            int(name.removeprefix(_SERVER)): ray.get_actor(name, options.namespace)
            for name in names(options.namespace)
            if name.startswith(_SERVER)
        }

    def reports(self) -> Mapping[int, ServerReport]:
        for index, actor in self._actors.items():
            # One call at a time: calls of an actor that does not answer would pile up.
            self._pending.setdefault(index, actor.report.remote())
        if self._pending:
            ray.wait(list(self._pending.values()), num_returns=len(self._pending), timeout=_ANSWER_SECONDS)
        return {index: self._report(index) for index in tuple(self._actors) if index in self._actors}

    def create(self, index: int) -> None:
        actor = ray.remote(ServerActor).options(
            **_COMMON,
            name=f"{_SERVER}{index}",
            namespace=self._options.namespace,
            get_if_exists=True,
            num_gpus=self._options.gpus_per_server,
            scheduling_strategy="SPREAD",
        )
        self._actors[index] = actor.remote(self._options, index)

    def drain(self, index: int) -> None:
        self._actors[index].drain.remote()

    def remove(self, index: int) -> None:
        self._pending.pop(index, None)
        self._last.pop(index, None)
        ray.kill(self._actors.pop(index), no_restart=True)

    def _report(self, index: int) -> ServerReport:
        try:
            report: ServerReport = ray.get(self._pending[index], timeout=0)
        except GetTimeoutError:
            report = self._unknown(index)
        except RayError as error:
            del self._pending[index]
            report = self._unknown(index)
            if isinstance(error, ActorDiedError):  # for good, or only the call; `create` finds the actor in that case
                self.create(index)
        else:
            del self._pending[index]
        self._last[index] = report
        return report

    def _unknown(self, index: int) -> ServerReport:
        """The report of a server whose actor does not answer: it is being started again."""
        return replace(self._last.get(index, ServerReport("", "")), state="starting", pid=0)


def start_controller(options: FleetOptions) -> Any:
    """Create the controller of a fleet on the head node. Raises ValueError if there is one."""
    actor = ray.remote(ControllerActor).options(
        **_COMMON,
        name=CONTROLLER,
        namespace=options.namespace,
        resources={"node:__internal_head__": 0.001},  # so that the address of the list stays the same
    )
    return actor.remote(options)


def names(namespace: str) -> list[str]:
    """Return the names of the actors of a fleet."""
    found = ray.util.list_named_actors(all_namespaces=True)
    return [
        actor["name"]
        for actor in found
        if actor["namespace"] == namespace and (actor["name"] == CONTROLLER or actor["name"].startswith(_SERVER))
    ]


def _start_thread(name: str, run: Callable[[], object]) -> None:
    """Run a function on a thread. If it raises, the actor's process ends, and Ray starts the actor again."""

    def run_or_end() -> None:
        try:
            run()
        except BaseException:
            logger.exception("an actor has failed; Ray starts it again")
            time.sleep(_TICK_SECONDS)
            os._exit(1)  # a thread cannot end the process otherwise

    threading.Thread(target=run_or_end, name=name, daemon=True).start()


def _prepare_process() -> None:
    leave_background()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
