"""The options of a fleet, and the addresses that follow from them."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import CliApp, CliPositionalArg, SettingsConfigDict, SettingsError

from logitport.connection import Tls
from logitport_server.config import ServerConfig, StartupError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_PORT = (1 << 16) - 1
_MAX_SERVERS = 1000
# The fleet gives each server addresses of its own.
_OF_THE_FLEET = ("--listen", "--metrics-listen")


class FleetOptions(BaseModel):
    """What a fleet consists of. Valid for one host and for a cluster: paths are files of every node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: int = Field(2, ge=1, le=_MAX_SERVERS, description="number of servers at the start")
    min: int | None = Field(None, ge=1, le=_MAX_SERVERS, description="minimum number of servers; --servers if not set")
    max: int | None = Field(None, ge=1, le=_MAX_SERVERS, description="maximum number of servers; --servers if not set")
    sessions_per_server: int = Field(
        32, ge=1, description="servers are added when the mean number of their sessions is above this"
    )
    step_milliseconds: float = Field(
        10.0,
        gt=0,
        description="servers are added when the mean time in which they compute a step is above this, in milliseconds",
    )
    scale_down_seconds: float = Field(
        120.0, ge=0, description="how long the load must fit into fewer servers before one is removed, in seconds"
    )
    unhealthy_seconds: float = Field(
        15.0, gt=0, description="a server that answers no health check for this long is replaced, in seconds"
    )
    host: str | None = Field(
        None, min_length=1, description="address on which servers and the list listen; the node's address if not set"
    )
    # Below the kernel's ephemeral ports, from which a connection could take the port of a server that restarts, and
    # above those that Ray gives its workers.
    list_port: int = Field(20050, ge=1, le=_MAX_PORT, description="port of the list of addresses")
    port_base: int = Field(
        20051, ge=1, le=_MAX_PORT, description="port of the first server; the others have the next ports"
    )
    metrics_port_base: int = Field(
        21051, ge=1, le=_MAX_PORT, description="port of the first server's metrics; the others have the next ports"
    )
    expose_metrics: bool = Field(
        False, description="serve metrics on the servers' address instead of loopback, for a Prometheus elsewhere"
    )
    gpus_per_server: float = Field(
        0.0, ge=0, description="GPUs that Ray reserves for each server; Ray hides the GPUs of servers without one"
    )
    tls_ca: Path | None = Field(
        None, description="PEM certificates of the authorities for the servers' certificate, for health checks"
    )
    tls_cert: Path | None = Field(None, description="PEM client certificate for health checks, if servers require one")
    tls_key: Path | None = Field(None, description="PEM private key of the client certificate")
    tls_server_name: str = Field("", description="name in the servers' certificate, if it is not their host")
    namespace: str = Field("logitport", min_length=1, description="Ray namespace of the fleet")
    serve_options: CliPositionalArg[list[str]] = Field(
        default=[], description="options of `logitport serve` for all servers, after --"
    )

    @property
    def min_servers(self) -> int:
        """Minimum number of servers."""
        return self.servers if self.min is None else self.min

    @property
    def max_servers(self) -> int:
        """Maximum number of servers."""
        return self.servers if self.max is None else self.max

    def addresses(self, index: int, node: str) -> tuple[str, str]:
        """Return HOST:PORT of a server and of its metrics.

        Args:
            index: number of the server, 0 or more. A server that is replaced keeps it.
            node: address of the node on which the server runs.
        """
        host = self.host or node
        metrics_host = host if self.expose_metrics else "127.0.0.1"
        return join(host, self.port_base + index), join(metrics_host, self.metrics_port_base + index)

    def health_tls(self, config: ServerConfig) -> Tls | None:
        """Return the settings of health checks of a server with this configuration; None without encryption."""
        if config.tls_cert is None:
            return None
        return Tls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key, server_name=self.tls_server_name)

    def differs_in_size_only(self, other: FleetOptions) -> bool:
        """Whether a running fleet with the other options can continue with these."""
        size = dict.fromkeys(
            ("servers", "min", "max", "sessions_per_server", "step_milliseconds", "scale_down_seconds")
        )
        return self.model_copy(update=size) == other.model_copy(update=size)

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str | None) -> str | None:
        if host in ("0.0.0.0", "::", "[::]"):  # noqa: S104 - it is refused
            raise ValueError(f"clients cannot connect to {host}; leave --host out, or give an address of the nodes")
        return host

    @model_validator(mode="after")
    def _check_size(self) -> FleetOptions:
        if not self.min_servers <= self.servers <= self.max_servers:
            raise ValueError(
                f"--min {self.min_servers}, --servers {self.servers} and --max {self.max_servers} are not in this order"
            )
        return self

    @model_validator(mode="after")
    def _check_ports(self) -> FleetOptions:
        last = {
            option: base + self.max_servers - 1
            for option, base in (("--port-base", self.port_base), ("--metrics-port-base", self.metrics_port_base))
        }
        for option, port in last.items():
            if port > _MAX_PORT:
                raise ValueError(f"{option}: the last of {self.max_servers} servers would have port {port}; lower it")
        ranges = {
            "--list-port": range(self.list_port, self.list_port + 1),
            "--port-base": range(self.port_base, last["--port-base"] + 1),
            "--metrics-port-base": range(self.metrics_port_base, last["--metrics-port-base"] + 1),
        }
        taken: dict[int, str] = {}
        for option, ports in ranges.items():
            for port in ports:
                if port in taken:
                    raise ValueError(f"{taken[port]} and {option} both use port {port} with {self.max_servers} servers")
                taken[port] = option
        return self

    @model_validator(mode="after")
    def _check_serve_options(self) -> FleetOptions:
        for option in self.serve_options:
            if option.partition("=")[0] in _OF_THE_FLEET:
                raise ValueError(
                    f"{option.partition('=')[0]} after --: the fleet chooses the addresses of its servers; use --host, "
                    "--port-base and --metrics-port-base"
                )
        return self


class _ServeOptions(ServerConfig):
    """The options of `logitport serve`, as on its command line."""

    model_config = SettingsConfigDict(
        cli_prog_name="logitport serve",
        cli_implicit_flags=True,
        cli_kebab_case=True,
        cli_exit_on_error=False,
    )


def parse_serve_options(options: Sequence[str]) -> ServerConfig:
    """Parse options of `logitport serve`, and read those in the environment. Raises StartupError for an invalid one."""
    try:
        return CliApp.run(_ServeOptions, cli_args=list(options))
    except SettingsError as error:
        raise StartupError(f"after --: {error}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        path = "-".join(str(part) for part in problem["loc"]).replace("_", "-")
        message = problem["msg"].removeprefix("Value error, ")
        raise StartupError(f"after --: {f'--{path}: ' if path else ''}{message}") from None


def join(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
