"""`up`, `status` and `down`: what the command does with a fleet. Its actors go on when the command has ended."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from logitport.system.backoff import NONE, Backoff
from logitport_fleet.options import parse_serve_options, require_token_mode
from logitport_fleet.ray_actors import CONTROLLER, names, start_controller
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.processes.supervisor import end_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport_fleet.controller import FleetStatus
    from logitport_fleet.options import FleetOptions

_POLL_SECONDS = 0.5
_ANSWER_SECONDS = 10.0
_KILL_SECONDS = 30.0


def connect(address: str, namespace: str) -> None:
    """Connect this process to a cluster.

    Raises:
        StartupError: it is missing, or cannot be used.
    """
    require_token_mode(os.environ, "in the environment of this command")
    try:
        _check_reachable(address)
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise StartupError(
            f"cannot use the Ray cluster at {address!r}: {error}. Start one with `RAY_AUTH_MODE=token ray start "
            "--head`, or give its HOST:PORT with --address; its token is read from RAY_AUTH_TOKEN or ~/.ray/auth_token"
        ) from None


def _check_reachable(address: str) -> None:
    """Connect once. Ray would try for several minutes. Raises OSError."""
    host, separator, port = address.rpartition(":")
    if separator and port.isdecimal() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS).close()


def up(options: FleetOptions, timeout_seconds: float, announce: Callable[[str], object]) -> FleetStatus:
    """Start a fleet, or change the size of the one that runs, and wait until its servers are ready.

    Args:
        options: of the fleet.
        timeout_seconds: how long to wait.
        announce: takes the URL of the list as soon as it is known.

    Raises:
        StartupError: the fleet does not start, is not ready in time, or runs with other options.
    """
    controller = _replace_controller(options)
    polls = Backoff(_POLL_SECONDS, _POLL_SECONDS, NONE, seconds=timeout_seconds)
    is_announced = False
    while True:
        current = _status(controller)
        if current is not None:
            if current.error:
                ray.kill(controller, no_restart=True)
                raise StartupError(current.error)
            if not is_announced:
                announce(current.url)
                is_announced = True
            if [report.state for report in current.reports.values()] == ["ready"] * current.desired:
                return current
            for index, report in current.reports.items():
                if report.state == "failed":
                    raise StartupError(
                        f"server {index} at {report.address} does not start: {_reason(report.error)}\nIt is started "
                        "again with growing delays. To change options, end the fleet: `logitport ray down`"
                    )
        if not polls.wait():
            raise StartupError(
                f"the fleet is not ready after {timeout_seconds:g} s; its start goes on. `logitport ray status` shows "
                "its state; Ray's folder of logs has the servers' output"
            )


def status(namespace: str) -> FleetStatus:
    """Return the state of the fleet. Raises StartupError if no fleet runs, or its controller does not answer."""
    controller = _find_controller(namespace)
    if controller is None:
        raise StartupError(f"no fleet runs in the namespace {namespace!r}; start one with `logitport ray up`")
    current = _status(controller)
    if current is None:
        raise StartupError("the fleet's controller does not answer; Ray starts it again if it was lost")
    return current


def down(namespace: str, *, now: bool) -> int:
    """End the fleet. Returns the number of actors that have been ended.

    Args:
        namespace: of the fleet.
        now: kill the servers, instead of letting them finish their steps.
    """
    controller = _find_controller(namespace)
    count = len(names(namespace))
    if controller is not None and not now:
        _drain(controller)
    polls = Backoff(_POLL_SECONDS, _POLL_SECONDS, NONE, seconds=_KILL_SECONDS)
    # The controller first: it would create the servers again.
    while left := sorted(names(namespace)):
        for name in left:
            with suppress(ValueError):  # it has ended
                ray.kill(ray.get_actor(name, namespace), no_restart=True)
        if not polls.wait():
            raise StartupError(f"Ray has not ended these actors after {_KILL_SECONDS:g} s: {', '.join(left)}")
    return count


def _replace_controller(options: FleetOptions) -> Any:
    """Create the controller. One that exists is replaced, and the servers stay."""
    present = _find_controller(options.namespace)
    if present is not None:
        try:
            running: FleetOptions = ray.get(present.options.remote(), timeout=_ANSWER_SECONDS)
        except RayError as error:
            raise StartupError(f"a fleet runs, and its controller does not answer: {error}") from None
        if not running.differs_in_size_only(options):
            raise StartupError(
                "a fleet with other options runs: only its size can be changed while it runs; end it with "
                "`logitport ray down` first"
            )
        ray.kill(present, no_restart=True)
    polls = Backoff(_POLL_SECONDS, _POLL_SECONDS, NONE, seconds=_KILL_SECONDS)
    while True:
        try:
            return start_controller(options)
        except ValueError as error:  # the name is not free yet
            if not polls.wait():
                raise StartupError(f"cannot create the fleet's controller: {error}") from None


def _drain(controller: Any) -> None:
    """Drain all servers, and wait until they have ended."""
    try:
        options: FleetOptions = ray.get(controller.options.remote(), timeout=_ANSWER_SECONDS)
        seconds = end_seconds(parse_serve_options(options.serve_options))
        polls = Backoff(_POLL_SECONDS, _POLL_SECONDS, NONE, seconds=seconds)
        while True:
            ray.get(controller.stop.remote(), timeout=_ANSWER_SECONDS)
            current = _status(controller)
            has_ended = current is not None and not current.desired and not current.reports
            if has_ended or not polls.wait():
                return
    except (RayError, StartupError):
        return  # then the servers are killed


def _find_controller(namespace: str) -> Any:
    try:
        return ray.get_actor(CONTROLLER, namespace)
    except ValueError:
        return None


def _status(controller: Any) -> FleetStatus | None:
    try:
        current: FleetStatus = ray.get(controller.status.remote(), timeout=_ANSWER_SECONDS)
    except RayError:
        return None
    return current


def _reason(output: str) -> str:
    lines = output.splitlines() or ["it ended without output"]
    return next((line for line in reversed(lines) if line.startswith("logitport: ")), lines[-1])
