"""Addresses of the server, and its local transport."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from logitport_server import addresses
from logitport_server.config.option import OptionGroup
from logitport_server.config.units import OrOff, Seconds
from logitport_server.config.values import Address, AddressOrSocket, AdvertisedAddress


class Listening(OptionGroup):
    """Where clients, probes and Prometheus reach the server."""

    heading: ClassVar[str] = "Listening"

    listen: AddressOrSocket = Field(
        "127.0.0.1:50051", description="HOST:PORT of the gRPC service, or unix:PATH; port 0 selects a free port"
    )
    advertise: OrOff[AdvertisedAddress] = Field(
        None,
        description="HOST or HOST:PORT that clients call, if it is not that of --listen: for a server that listens on "
        "0.0.0.0, or behind NAT; the server prints this address when it is ready",
    )
    metrics_listen: OrOff[Address] = Field(
        None, description="HOST:PORT of the Prometheus metrics, and of /healthz and /readyz for probes"
    )
    processes: int = Field(
        1,
        ge=1,
        le=256,
        description="number of servers, each a process with a port of its own: that of --listen and the next ones; "
        "they share their registrations and --metrics-listen, and are started again when they end",
    )
    keepalive_seconds: Seconds = Field(
        30.0, ge=1, description="keepalive ping interval of idle connections, and timeout of a ping"
    )
    local_transport: bool = Field(True, description="offer a Unix socket and shared memory to engines on this host")
    share_device_memory: bool = Field(
        True, description="edit logits in place (CUDA IPC) if the engine is on this host and uses the server's GPU"
    )

    @model_validator(mode="after")
    def _check_addresses(self) -> Listening:
        for address in (self.listen, self.advertise):
            if address is not None:
                addresses.nth(address, self.processes - 1)
        if addresses.is_socket(self.listen) and self.advertise is not None:
            raise ValueError("--advertise needs --listen HOST:PORT: only this host can reach a Unix socket")
        if addresses.has_free_port(self.listen) and self.advertise is not None and addresses.names_port(self.advertise):
            raise ValueError("--advertise HOST:PORT needs a port in --listen; write --advertise HOST for a free port")
        return self
