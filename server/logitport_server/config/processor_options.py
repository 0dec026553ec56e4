"""Which processors exist, where they run, and where registered ones are kept."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from logitport_programs.cost import DEFAULT_LIMIT_MS
from logitport_server.config.option import OptionGroup
from logitport_server.config.units import Milliseconds, OrOff, Size
from logitport_server.config.values import Device, File, NamedTokenizer, ProcessorPath, Store, check_unique_names

# Of all principals, or more if four of them can register more. Each view of the registry is computed from all.
_MAX_REGISTERED = 1024
_FULL_PRINCIPALS = 4


class Processors(OptionGroup):
    """Installed and shipped processors, and programs."""

    heading: ClassVar[str] = "Processors"

    device: Device = Field("auto", description="where processors that read logits run: auto, cpu, cuda or cuda:INDEX")
    logits_processors: list[ProcessorPath] = Field(
        default=[],
        description="module.path:Class of an installed processor; requests name it by the same text; it is "
        "trusted and runs in the process of its caller's sessions, without a sandbox",
    )
    entry_points: bool = Field(
        True, description="load the processors of installed packages (entry-point group logitport.processors)"
    )
    enable_custom_logit_processor: bool = Field(
        False, description="accept shipped processors; this runs code that clients send"
    )
    programs: bool = Field(
        True,
        description="accept programs: processors that read logits, as data that is verified, which runs no code of "
        "clients; with tokens, registering them needs the scope register",
    )
    program_milliseconds: Milliseconds = Field(
        DEFAULT_LIMIT_MS,
        gt=0,
        le=1e6,
        description="longest time of one core that a program may take for one row, in the worst case",
    )
    tokenizer: list[NamedTokenizer] = Field(
        default=[],
        description="NAME=PATH of a tokenizer.json for grammars and request.tokenizer, or of its folder; sessions "
        "select it by tokenizer_id, requests by a parameter; if there is only one, it is the default",
    )

    @model_validator(mode="after")
    def _check_tokenizers(self) -> Processors:
        check_unique_names("--tokenizer", self.tokenizer)
        return self


class RegistrationOptions(OptionGroup):
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
    def _check_store_options(self) -> RegistrationOptions:
        if self.has_remote_store and self.store_key is None:
            raise ValueError(
                "--store redis:// needs --store-key: a process that can write to Redis could otherwise run code; write "
                "a key with `openssl rand -hex 32`, and give it to all servers of the fleet"
            )
        if self.store_key is not None and self.store is None:
            raise ValueError("--store-key needs --store")
        return self
