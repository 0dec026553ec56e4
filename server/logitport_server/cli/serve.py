"""`logitport serve`. Its options, with their defaults, are the fields of the groups in `logitport_server/config/`."""

from __future__ import annotations

from typing import Annotated

import click
from pydantic import Field

from logitport_server.config import ServerConfig
from logitport_server.config.option import Flag
from logitport_server.config.server_config import ConfigFile
from logitport_server.config.sources import to_toml


class PrintConfig(ConfigFile):
    """The option that prints the configuration instead of serving."""

    print_config: Annotated[bool, Flag("--print-config")] = Field(
        False,
        exclude=True,
        description="print all options with their values and where these come from, as a file for --config; exit",
    )


class Serve(ServerConfig, PrintConfig):
    """Run the service until SIGTERM or SIGINT.

    Each option can also be set as LOGITPORT_<NAME> in the environment, for example LOGITPORT_METRICS_LISTEN, and in the
    TOML file of --config, for example metrics-listen = "127.0.0.1:9090". Flags have precedence over the environment,
    and the environment over the file. The value off turns an option off that is off by default.
    """

    def run(self) -> None:
        if self.print_config:
            print(to_toml(self, click.get_current_context().obj), end="")  # noqa: T201
            return
        from logitport_server.processes.single import serve

        serve(self)
