"""The options of `logitport serve`. They are validated once and then frozen."""

from __future__ import annotations

from typing import ClassVar

from pydantic import ConfigDict, Field

from logitport_server.config.limits import Limits
from logitport_server.config.listening import Listening
from logitport_server.config.logging import Logging
from logitport_server.config.option import OptionGroup
from logitport_server.config.processors import Processors
from logitport_server.config.registration import Registration
from logitport_server.config.sandbox import Sandbox
from logitport_server.config.security import Security
from logitport_server.config.stopping import Stopping
from logitport_server.config.units import OrOff
from logitport_server.config.values import File


class ConfigFile(OptionGroup):
    """The file with values of options."""

    heading: ClassVar[str] = "Configuration"

    config: OrOff[File] = Field(
        None, description="TOML file with options; flags and the environment have precedence over it"
    )


# pydantic collects the fields of the last base first.
class ServerConfig(
    Logging,
    Stopping,
    Limits,
    Sandbox,
    Registration,
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
