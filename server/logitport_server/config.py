"""Everything an operator can set, validated once, frozen."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import limits
from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from logitport.variables import PREFIX
from logitport_server.sandbox.layers import LAYER_NAMES

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_settings import PydanticBaseSettingsSource


class StartupError(Exception):
    """The configuration cannot be served on this machine; the message says what to change."""


def _address(value: str) -> str:
    host, separator, port = value.rpartition(":")
    if not (separator and host and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"{value!r} is not HOST:PORT; write, for example, 127.0.0.1:50051")
    return value


def _address_or_socket(value: str) -> str:
    if value.startswith("unix:"):
        if not value.startswith("unix:/"):
            raise ValueError(f"{value!r} is not unix:PATH with an absolute path; write, for example, unix:/run/lp.sock")
        return value
    return _address(value)


def _rate(value: str) -> str:
    try:
        limits.parse(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a rate; write, for example, 1000/second or 5000/minute") from None
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError(f"{value!r} is not a device; write auto, cpu, cuda or cuda:INDEX")
    return value


def _worker_python(value: str) -> str:
    version, separator, path = value.partition("=")
    if not (separator and re.fullmatch(r"3\.\d+", version) and path.startswith("/")):
        raise ValueError(f"{value!r} is not VERSION=PATH; write, for example, 3.12=/usr/bin/python3.12")
    return value


def _tokenizer(value: str) -> str:
    name, separator, path = value.partition("=")
    if not (separator and name and path):
        raise ValueError(f"{value!r} is not NAME=PATH; write, for example, qwen3=/models/Qwen3-8B/tokenizer.json")
    return value


def _processor_path(value: str) -> str:
    module, _, name = value.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError(f"{value!r} is not module.path:Class; write, for example, our_team.processors:BanFrench")
    return value


def _layer(value: str) -> str:
    if value not in LAYER_NAMES:
        raise ValueError(f"{value!r} is no layer of the sandbox; write one of {', '.join(LAYER_NAMES)}")
    return value


Address = Annotated[str, AfterValidator(_address)]
LayerName = Annotated[str, AfterValidator(_layer)]


WITHOUT_LAYER: list[LayerName] = Field(
    default=[],
    description=f"a layer of the sandbox ({', '.join(LAYER_NAMES)}) to do without; may be given more than once",
)


CUSTOM_OPS: list[str] = Field(
    default=[],
    description='which ops run a kernel of their platform: "all" or "none" as a base, "+op" and "-op" on top, as in '
    '["none","+apply_edits"]',
)


class _Variables(EnvSettingsSource):
    """The environment. What is no JSON is left as it is: checked like the rest, it is told of with its name."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class ServerConfig(BaseSettings):
    """The options of `logitport serve`; each can also be set as LOGITPORT_<NAME> in the environment."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    listen: Annotated[str, AfterValidator(_address_or_socket)] = Field(
        "127.0.0.1:50051", description="HOST:PORT of the gRPC service, or unix:PATH; port 0 takes a free one"
    )
    metrics_listen: Address | None = Field(None, description="HOST:PORT of Prometheus metrics; off if not given")
    tokens: Path | None = Field(
        None, description="file of those who may call, by the hash of a token or by certificate; read again on changes"
    )
    tls_cert: Path | None = Field(None, description="PEM certificate of the gRPC service, and its chain")
    tls_key: Path | None = Field(None, description="PEM private key of that certificate")
    tls_client_ca: Path | None = Field(
        None, description="PEM certificates of authorities; clients must show a certificate that one of them signed"
    )
    device: Annotated[str, AfterValidator(_device)] = Field(
        "auto", description="where processors that read logits run: auto, cpu, cuda or cuda:INDEX"
    )
    logits_processors: list[Annotated[str, AfterValidator(_processor_path)]] = Field(
        default=[],
        description="module.path:Class of a processor that is installed here, by which requests then name it; it is "
        "trusted and runs in the server's own process; may be given more than once",
    )
    entry_points: bool = Field(
        True, description="have requests name the processors of installed packages (group logitport.processors), too"
    )
    vllm_entry_points: bool = Field(
        False, description="the same for those that packages install for vLLM (group vllm.logits_processors)"
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
    max_processors_per_request: int = Field(64, ge=1, description="processors in one request's chain")
    max_params_bytes: int = Field(
        1 << 20,
        ge=1,
        description="JSON that a request may bring, its sampling parameters and those of its processors together",
    )
    max_draft_tokens: int = Field(256, ge=0, description="draft tokens that a request may have in one step")
    max_step_bytes: int = Field(
        1 << 20, ge=1 << 10, description="largest frame with the columns of a step; 1024 rows of drafts take 40 kB"
    )
    max_tokens_per_request: int = Field(1 << 20, ge=1, description="token ids, drafts included, of one request")
    max_connections: int = Field(1024, ge=1, description="connections that are open; those that come then are closed")
    max_sessions: int = Field(256, ge=1, description="sessions that are open at once")
    max_sessions_per_principal: int = Field(64, ge=1, description="of those, what one principal may open")
    max_calls_per_principal: int = Field(64, ge=1, description="other calls that a principal may have in flight")
    max_call_rate: Annotated[str, AfterValidator(_rate)] = Field(
        "1000/second", description="calls, and openings of sessions, that one principal may make; steps are not counted"
    )
    stall_seconds: float = Field(
        60.0, gt=0, description="how long a client may take to send a call's message, or to take a reply, in seconds"
    )
    keepalive_seconds: float = Field(
        30.0, ge=1, description="how often idle connections are asked, and how long they have to answer, in seconds"
    )
    local_transport: bool = Field(True, description="offer engines on this host a Unix socket and shared memory")
    share_device_memory: bool = Field(
        True, description="edit the logits of engines on this host and on the server's GPU where they lie (CUDA IPC)"
    )
    max_region_bytes: int = Field(2 << 30, ge=0, description="shared memory that one session may ask for, in bytes")
    store: Path | None = Field(
        None, description="folder, for this server alone, in which registered processors and names outlive it"
    )
    trusted_keys: Path | None = Field(
        None, description="folder of public keys, *.pub; accept only shipped processors that one of them has signed"
    )
    max_registered_processors: int = Field(1024, ge=1, description="processors that the registry keeps")
    max_processors_per_principal: int = Field(
        256, ge=1, description="of those, what one principal may register, and as many names"
    )
    max_payload_bytes: int = Field(
        16 << 20,
        ge=1,
        description="longest string of a shipped processor, whose hexadecimal digits take two bytes each",
    )
    isolation: Literal["process", "none"] = Field(
        "process",
        description="where shipped processors run: each author's in a sandboxed process, or all in the server's own, "
        "which is for code that you would run yourself",
    )
    without_layer: list[LayerName] = WITHOUT_LAYER
    tokenizer: list[Annotated[str, AfterValidator(_tokenizer)]] = Field(
        default=[],
        description="NAME=PATH of a tokenizer.json, or of the folder with it, that grammars are matched with; sessions "
        "name it as their tokenizer_id, requests as a parameter, and a single one is the default; may be given more "
        "than once",
    )
    worker_python: list[Annotated[str, AfterValidator(_worker_python)]] = Field(
        default=[],
        description="VERSION=PATH of another Python for processors that were shipped from it, such as "
        "3.12=/opt/python3.12/bin/python; it needs logitport, and torch for processors that read logits; may be given "
        "more than once",
    )
    max_workers: int = Field(
        64, ge=1, description="worker processes at once: one for each author or tenant whose processors are in use"
    )
    worker_memory_bytes: int = Field(2 << 30, ge=64 << 20, description="memory of one author's processors, in bytes")
    worker_threads: int = Field(32, ge=4, description="threads and processes of one author's processors")
    processor_timeout_seconds: float = Field(
        2.0, gt=0, le=3600, description="how long one call of a shipped processor may take, in seconds"
    )
    load_timeout_seconds: float = Field(
        10.0, gt=0, le=3600, description="how long loading a shipped processor, or its start, may take, in seconds"
    )
    quarantine_after: int = Field(
        3, ge=1, description="failures in a row that cost a worker, after which a processor is not called any more"
    )
    loader_cache_size: int = Field(128, ge=1, description="loaded processor classes that are kept, by digest")
    drain_seconds: float = Field(5.0, ge=0, description="how long SIGTERM lets steps in flight finish, in seconds")
    custom_ops: list[str] = CUSTOM_OPS
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")

    @property
    def asks(self) -> bool:
        """Whether callers are asked who they are."""
        return self.tokens is not None or self.tls_client_ca is not None

    @classmethod
    def variables(cls) -> list[str]:
        """What the options are called in the environment."""
        return [PREFIX + name.upper() for name in cls.model_fields]

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Variables(settings_cls)

    @model_validator(mode="after")
    def _names_are_given_once(self) -> ServerConfig:
        for option, given in (("--tokenizer", self.tokenizer), ("--worker-python", self.worker_python)):
            names = [value.partition("=")[0] for value in given]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{option} {twice[0]}=... is given twice; give each name once")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> ServerConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key go together; give both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        return self
