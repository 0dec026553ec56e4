"""The server's log."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from logitport_server import logs
from logitport_server.config.option import OptionGroup
from logitport_server.logs import LogFormat


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class Logging(OptionGroup):
    """Options of the log."""

    heading: ClassVar[str] = "Logging"

    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="minimum level of logged messages"
    )
    log_format: LogFormat = Field(
        "text", description="how the log is written: text, or json with one object a line and the fields of events"
    )

    def start_logging(self) -> None:
        """Log to stderr, unless the program has configured logging itself."""
        logs.configure(self.log_level, self.log_format)
