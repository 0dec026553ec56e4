"""The state of one supervised server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

State = Literal["starting", "ready", "unhealthy", "draining", "ended", "failed"]


@dataclass(frozen=True)
class ServerLoad:
    """The load of a server.

    Attributes:
        sessions: number of open sessions.
        steps: number of steps since the server's start.
        step_seconds: time that the server took for these steps, in seconds.
    """

    sessions: int = 0
    steps: int = 0
    step_seconds: float = 0.0


@dataclass(frozen=True)
class ServerReport:
    """State of one server.

    Attributes:
        address: HOST:PORT of the server; "" while it is not known.
        metrics_address: HOST:PORT of its metrics; "" while it is not known.
        state: "failed" if it cannot be started; "unhealthy" if it has not answered the last health check.
        pid: of the server's process; 0 if there is none.
        restarts: how often the process was restarted.
        load: as last read.
        error: the last lines of a process that has ended by itself, and why it was killed.
    """

    address: str = ""
    metrics_address: str = ""
    state: State = "starting"
    pid: int = 0
    restarts: int = 0
    load: ServerLoad = field(default_factory=ServerLoad)
    error: str = ""
