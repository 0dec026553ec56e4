"""The options of a fleet, the addresses that follow from them, and the authentication that Ray must have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from logitport_server.addresses import is_wildcard, join
from logitport_server.command_line import parse
from logitport_server.config import ServerConfig
from logitport_server.config.option import Argument, Metavar
from logitport_server.config.units import Milliseconds, Seconds
from logitport_server.config.values import Port
from logitport_server.lifecycle.start_errors import StartupError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MAX_PORT = (1 << 16) - 1
_MAX_SERVERS = 1000
# The fleet gives each server addresses of its own.
_OF_THE_FLEET = ("--listen", "--advertise", "--metrics-listen")
_LOOPBACK = "127.0.0.1"
AUTH_MODE = "RAY_AUTH_MODE"


class ServerAddresses(NamedTuple):
    """Where one server listens.

    Attributes:
        clients: HOST:PORT of its gRPC service.
        metrics: HOST:PORT of its metrics and its health checks.
    """

    clients: str
    metrics: str

    def configure(self, config: ServerConfig) -> ServerConfig:
        """Return the options of a server that listens at these addresses."""
        return config.model_copy(update={"listen": self.clients, "metrics_listen": self.metrics})


class FleetOptions(BaseModel):
    """The options of a fleet. Valid for one host and for a cluster: paths are files of every node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    servers: int = Field(2, ge=1, le=_MAX_SERVERS, description="number of servers at the start")
    min: int | None = Field(None, ge=1, le=_MAX_SERVERS, description="minimum number of servers; --servers if not set")
    max: int | None = Field(None, ge=1, le=_MAX_SERVERS, description="maximum number of servers; --servers if not set")
    sessions_per_server: int = Field(
        32, ge=1, description="servers are added when the mean number of their sessions is above this"
    )
    step_milliseconds: Milliseconds = Field(
        10.0,
        gt=0,
        description="servers are added when the mean time in which they compute a step is above this",
    )
    scale_down_seconds: Seconds = Field(
        120.0, ge=0, description="how long the load must fit into fewer servers before one is removed"
    )
    unhealthy_seconds: Seconds = Field(
        15.0, gt=0, description="a server that answers no health check for this long is restarted"
    )
    host: Annotated[str, Metavar("HOST")] | None = Field(
        None, min_length=1, description="address on which servers and the list listen; the node's address if not set"
    )
    # Below the kernel's ephemeral ports, where a connection could take the port of a server that restarts, and
    # above those that Ray gives its workers.
    list_port: Port = Field(20050, ge=1, le=_MAX_PORT, description="port of the list of addresses")
    port_base: Port = Field(
        20051, ge=1, le=_MAX_PORT, description="port of the first server; the others have the next ports"
    )
    metrics_port_base: Port = Field(
        21051,
        ge=1,
        le=_MAX_PORT,
        description="port of the first server's metrics and health checks; the others have the next ports",
    )
    expose_metrics: bool = Field(
        False, description="serve metrics on the servers' address instead of loopback, for a Prometheus elsewhere"
    )
    gpus_per_server: float = Field(
        0.0, ge=0, description="GPUs that Ray reserves for each server; Ray hides the GPUs of servers without one"
    )
    namespace: str = Field("logitport", min_length=1, description="Ray namespace of the fleet")
    serve_options: Argument[list[str]] = Field(
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

    def addresses(self, index: int, node: str) -> ServerAddresses:
        """Return the addresses of a server.

        Args:
            index: number of the server, 0 or more. A server that is restarted keeps it.
            node: address of the node on which the server runs.
        """
        host = self.host or node
        return ServerAddresses(
            join(host, self.port_base + index),
            join(host if self.expose_metrics else _LOOPBACK, self.metrics_port_base + index),
        )

    def differs_in_size_only(self, other: FleetOptions) -> bool:
        """Whether a running fleet with the other options can continue with these."""
        size = dict.fromkeys(
            ("servers", "min", "max", "sessions_per_server", "step_milliseconds", "scale_down_seconds")
        )
        return self.model_copy(update=size) == other.model_copy(update=size)

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str | None) -> str | None:
        if host is not None and is_wildcard(join(host, 1)):
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
        bases = {"--port-base": self.port_base, "--metrics-port-base": self.metrics_port_base}
        taken = {self.list_port: "--list-port"}
        for option, base in bases.items():
            last = base + self.max_servers - 1
            if last > _MAX_PORT:
                raise ValueError(f"{option}: the last of {self.max_servers} servers would have port {last}; lower it")
            for port in range(base, last + 1):
                if port in taken:
                    raise ValueError(f"{taken[port]} and {option} both use port {port} with {self.max_servers} servers")
                taken[port] = option
        return self

    @model_validator(mode="after")
    def _check_serve_options(self) -> FleetOptions:
        for option in self.serve_options:
            if option.partition("=")[0] in _OF_THE_FLEET:
                raise ValueError(
                    f"{option.partition('=')[0]} after --: the fleet chooses the addresses of its servers; see --host, "
                    "--port-base, --servers and the list"
                )
        return self


def parse_serve_options(options: Sequence[str]) -> ServerConfig:
    """Parse options of `logitport serve`, and read those in the environment. Raises StartupError for an invalid one."""
    try:
        return parse(ServerConfig, "logitport serve", options)
    except UsageError as error:
        raise UsageError(f"after --: {error}") from None


def require_token_mode(environment: Mapping[str, str], where: str) -> None:
    """Check that Ray authenticates its callers.

    Args:
        environment: variables of a process.
        where: which process, for the message.

    Raises:
        StartupError: it does not.
    """
    if environment.get(AUTH_MODE, "").lower() != "token":
        raise StartupError(
            f"{AUTH_MODE} is not set to token {where}: without it, any program that reaches the cluster's ports can "
            "run code on all of its nodes. Create a token with `ray get-auth-token --generate`, copy ~/.ray/auth_token "
            f"to each node, and set {AUTH_MODE}=token for every `ray start` and for `logitport ray`"
        )
