"""Addresses of the server, its local transport, and who may call it."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from logitport_server import addresses
from logitport_server.config.option import OptionGroup
from logitport_server.config.units import OrOff, Seconds
from logitport_server.config.values import Address, AddressOrSocket, AdvertisedAddress, File, Folder


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
    keepalive_seconds: Seconds = Field(
        30.0, ge=1, description="keepalive ping interval of idle connections, and timeout of a ping"
    )
    local_transport: bool = Field(True, description="offer a Unix socket and shared memory to engines on this host")
    share_device_memory: bool = Field(
        True, description="edit logits in place (CUDA IPC) if the engine is on this host and uses the server's GPU"
    )

    @model_validator(mode="after")
    def _check_addresses(self) -> Listening:
        if addresses.is_socket(self.listen) and self.advertise is not None:
            raise ValueError("--advertise needs --listen HOST:PORT: only this host can reach a Unix socket")
        if addresses.has_free_port(self.listen) and self.advertise is not None and addresses.names_port(self.advertise):
            raise ValueError("--advertise HOST:PORT needs a port in --listen; write --advertise HOST for a free port")
        return self


class Security(OptionGroup):
    """Permitted callers of the server, and permitted authors of code."""

    heading: ClassVar[str] = "Security"

    tokens: OrOff[File] = Field(
        None, description="file of permitted callers, by token hash or certificate; reloaded when it changes"
    )
    tls_cert: OrOff[File] = Field(None, description="PEM certificate chain of the gRPC service")
    tls_key: OrOff[File] = Field(None, description="PEM private key of that certificate")
    tls_client_ca: OrOff[File] = Field(
        None, description="PEM certificates of authorities; clients must present a certificate signed by one of them"
    )
    trusted_keys: OrOff[Folder] = Field(
        None, description="folder of public keys (*.pub); only shipped processors signed by one of them are accepted"
    )
    require_tenant: bool = Field(
        False,
        description="refuse requests that name no tenant, so that users of one engine do not share a trust domain",
    )

    @property
    def requires_authentication(self) -> bool:
        """Whether callers must authenticate."""
        return self.tokens is not None or self.tls_client_ca is not None

    @model_validator(mode="after")
    def _check_tls_options(self) -> Security:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key need each other; give both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        return self
