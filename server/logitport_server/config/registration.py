"""Registered processors, and where they are kept."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from logitport_server.config.option import OptionGroup
from logitport_server.config.units import OrOff, Size
from logitport_server.config.values import File, Store

# Of all principals, or more if four of them can register more. Each view of the registry is computed from all.
_MAX_REGISTERED = 1024
_FULL_PRINCIPALS = 4


class Registration(OptionGroup):
    """Where registered processors are kept, and how many there may be."""

    heading: ClassVar[str] = "Registered processors"

    store: OrOff[Store] = Field(
        None,
        description="where registered processors, names and quarantines are kept: a folder, for the servers of one "
        "host, or redis://HOST:PORT/DATABASE (rediss:// with TLS), for those of many; set a URL with a password in the "
        "environment",
    )
    store_key: OrOff[File] = Field(
        None,
        description="file with the secret of the fleet, 32 bytes or more, and further lines with older ones; entries "
        "of the store without an HMAC of one of them are ignored; required for redis://",
    )
    max_processors_per_principal: int = Field(
        256, ge=1, description="maximum number of registered processors of one principal, and of its names"
    )
    max_payload_bytes: Size = Field(
        16 << 20,
        ge=1,
        description="maximum length of a payload in characters; each byte of a pickle or program takes two "
        "hexadecimal digits",
    )

    @property
    def max_registered_processors(self) -> int:
        """The maximum number of registered processors of all principals: no single one can use it up."""
        return max(_MAX_REGISTERED, _FULL_PRINCIPALS * self.max_processors_per_principal)

    @property
    def has_remote_store(self) -> bool:
        """Whether registrations are kept in Redis."""
        return self.store is not None and "://" in self.store

    @model_validator(mode="after")
    def _check_store_options(self) -> Registration:
        if self.has_remote_store and self.store_key is None:
            raise ValueError(
                "--store redis:// needs --store-key: a process that can write to Redis could otherwise run code; write "
                "a key with `openssl rand -hex 32`, and give it to all servers of the fleet"
            )
        if self.store_key is not None and self.store is None:
            raise ValueError("--store-key needs --store")
        return self
