"""How a server stops, and moves its sessions to other servers."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from logitport_server.config.option import OptionGroup
from logitport_server.config.units import OrOff, Seconds


class Stopping(OptionGroup):
    """Stopping the server, and moving sessions."""

    heading: ClassVar[str] = "Stopping and moving"

    move_seconds: Seconds = Field(
        20.0, ge=0, description="how long to wait after SIGTERM for sessions that can move to another server"
    )
    drain_seconds: Seconds = Field(5.0, ge=0, description="how long in-flight steps may take to finish after SIGTERM")
    max_session_age: OrOff[Seconds] = Field(
        None,
        gt=0,
        description="ask a session to move to another server after about this time, so that servers which were added "
        "get load",
    )
