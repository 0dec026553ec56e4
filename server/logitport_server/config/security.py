"""Callers, TLS and signatures."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from logitport_server.config.option import OptionGroup
from logitport_server.config.units import OrOff
from logitport_server.config.values import File, Folder


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
