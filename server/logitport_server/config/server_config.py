"""The options of `logitport serve`, with their defaults. They are validated once and then frozen.

Those that embedded sessions have, too, get their defaults from `SessionLimits`, field by field.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from logitport_server import logs
from logitport_server.config.limits import Limits
from logitport_server.config.listening import Listening, Security
from logitport_server.config.option import OptionGroup
from logitport_server.config.processor_options import Processors, RegistrationOptions
from logitport_server.config.sandbox import Sandbox
from logitport_server.config.units import OrOff, Seconds
from logitport_server.config.values import File
from logitport_server.logs import LogFormat
from logitport_session.resources.session_limits import SessionLimits


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class ConfigFile(OptionGroup):
    """The file with values of options."""

    heading: ClassVar[str] = "Configuration"

    config: OrOff[File] = Field(
        None, description="TOML file with options; flags and the environment have precedence over it"
    )


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


# pydantic collects the fields of the last base first.
class ServerConfig(
    Logging,
    Stopping,
    Limits,
    Sandbox,
    RegistrationOptions,
    Processors,
    Security,
    Listening,
    ConfigFile,
):
    """The options of `logitport serve`. Only the command reads the environment and the configuration file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def has_workers(self) -> bool:
        """Whether shipped processors run in sandboxed processes."""
        return self.enable_custom_logit_processor and self.isolation == "process"

    @property
    def runs_shipped_code(self) -> bool:
        """Whether shipped processors run in the process of their caller's sessions."""
        return self.enable_custom_logit_processor and self.isolation == "none"

    @property
    def session_limits(self) -> SessionLimits:
        """Limits of a session."""
        return SessionLimits(**{field.name: getattr(self, field.name) for field in fields(SessionLimits)})
