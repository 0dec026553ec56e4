"""How a server stops, and moves its sessions to other servers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from logitport_server.config.option import OptionGroup
from logitport_server.config.units import OrOff, Seconds


class Stopping(OptionGroup):
    """Stopping the server, and moving sessions."""

    heading: ClassVar[str] = "Stopping and moving"

    stop_seconds: Seconds = Field(
        25.0,
        ge=0,
        description="how long sessions and calls may go on after SIGTERM: the server waits for sessions that can move "
        "to another server until 5s are left, and then for in-flight calls, for at most 5s; it ends up to 7s later",
    )
    max_session_age: OrOff[Seconds] = Field(
        None,
        gt=0,
        description="ask a session to move to another server after about this time, so that servers which were added "
        "get load",
    )
