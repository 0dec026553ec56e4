"""Everything an operator can set, validated once, frozen."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def _address(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not (separator and host and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"{value!r} is not HOST:PORT; write, for example, 127.0.0.1:50051")
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError(f"{value!r} is not a device; write auto, cpu, cuda or cuda:INDEX")
    return value


Address = Annotated[str, AfterValidator(_address)]


CUSTOM_OPS: list[str] = Field(
    default=[],
    description='which ops run a kernel of their platform: "all" or "none" as a base, "+op" and "-op" on top, as in '
    '["none","+apply_edits"]',
)


class ServerConfig(BaseSettings):
    """The options of `logitport serve`; each can also be set as LOGITPORT_<NAME> in the environment."""

    model_config = SettingsConfigDict(env_prefix="LOGITPORT_", frozen=True, extra="forbid")

    listen: Address = Field("127.0.0.1:50051", description="HOST:PORT of the gRPC service; port 0 takes a free one")
    metrics_listen: Address | None = Field(None, description="HOST:PORT of Prometheus metrics; off if not given")
    device: Annotated[str, AfterValidator(_device)] = Field(
        "auto", description="where processors that read logits run: auto, cpu, cuda or cuda:INDEX"
    )
    enable_custom_logit_processor: bool = Field(
        False, description="accept shipped processors, which is to run code that clients send"
    )
    max_message_bytes: int = Field(
        256 << 20,
        ge=1 << 16,
        le=(1 << 31) - 1,
        description="largest gRPC message either way; 256 rows of 152k float32 logits take 156 MB",
    )
    max_requests_per_session: int = Field(1024, ge=1, description="requests that one session may hold at once")
    local_lane: bool = Field(True, description="offer engines on this host a Unix socket and shared memory")
    max_region_bytes: int = Field(2 << 30, ge=0, description="shared memory that one session may ask for, in bytes")
    max_registered_processors: int = Field(1024, ge=1, description="processors that the registry keeps")
    max_processors_per_principal: int = Field(256, ge=1, description="of those, what one principal may register")
    max_payload_bytes: int = Field(
        16 << 20,
        ge=1,
        description="longest string of a shipped processor, whose hexadecimal digits take two bytes each",
    )
    loader_cache_size: int = Field(128, ge=1, description="loaded processor classes that are kept, by digest")
    drain_seconds: float = Field(5.0, ge=0, description="how long SIGTERM lets steps in flight finish, in seconds")
    custom_ops: list[str] = CUSTOM_OPS
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
