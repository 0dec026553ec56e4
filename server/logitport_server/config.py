"""The server's options. They are validated once and then frozen."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from logitport.programs.cost.limits import DEFAULT_LIMIT_MS
from logitport.variables import PREFIX
from logitport_server import addresses, logs
from logitport_server.logs import LogFormat  # noqa: TC001 - pydantic reads the annotations
from logitport_server.sandbox.layers import LAYER_NAMES

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_settings import PydanticBaseSettingsSource


_SECONDS_OF = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


class StartupError(Exception):
    """The configuration does not work on this machine. The message says what to change."""


class Rate(NamedTuple):
    """A number of calls per period.

    Attributes:
        calls: 1 or more.
        seconds: the period.
    """

    calls: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse text such as "1000/second" or "10 per 5 minutes". Raises ValueError."""
        match = re.fullmatch(r"(\d{1,9})(?:/| per )(?:(\d{1,9}) )?(second|minute|hour|day)s?", text.strip().lower())
        if match is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
            raise ValueError(f"{text!r} is not a rate; write, for example, 1000/second or 5000/minute")
        return cls(int(match[1]), int(match[2] or 1) * _SECONDS_OF[match[3]])


def _rate(value: str) -> str:
    Rate.parse(value)
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


def _store(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    if separator and scheme not in ("redis", "rediss"):  # without the rest, which may have a password
        raise ValueError(f"{scheme}:// is no store; write a folder, redis://HOST:PORT/DATABASE or rediss://...")
    if separator and not rest.rpartition("@")[2].strip("/"):
        raise ValueError(f"{scheme}:// has no host; write, for example, redis://127.0.0.1:6379/0")
    return value


def _layer(value: str) -> str:
    if value not in LAYER_NAMES:
        raise ValueError(f"{value!r} is not a layer of the sandbox; write one of {', '.join(LAYER_NAMES)}")
    return value


def check_layers(without: list[str], required: list[str]) -> None:
    """Raise ValueError if a layer is both waived and required."""
    if both := sorted({*without} & {*required}):
        raise ValueError(f"--without-layer {both[0]} and --require-layer {both[0]} contradict each other; give one")


Address = Annotated[str, AfterValidator(addresses.checked)]
LayerName = Annotated[str, AfterValidator(_layer)]


WITHOUT_LAYER: list[LayerName] = Field(
    default=[],
    description=f"layer of the sandbox to leave out ({', '.join(LAYER_NAMES)}); may be given more than once",
)


REQUIRE_LAYER: list[LayerName] = Field(
    default=[],
    description="a layer of the sandbox without which shipped processors are refused, although the other layers stop "
    "every attempt; may be given more than once",
)


CUSTOM_OPS: list[str] = Field(
    default=[],
    description='ops that use the kernels of their platform: "all" or "none" first, then exceptions as "+op" or "-op", '
    'for example ["none","+apply_edits"]',
)


class _Variables(EnvSettingsSource):
    """The environment. A value that is not JSON is kept as text, so that validation reports it with its name."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class EnvironmentOptions(BaseSettings):
    """Base of options that can also be set as LOGITPORT_<NAME> in the environment."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Variables(settings_cls)


class ServerConfig(EnvironmentOptions):
    """The options of `logitport serve`."""

    listen: Annotated[str, AfterValidator(addresses.checked_or_socket)] = Field(
        "127.0.0.1:50051", description="HOST:PORT of the gRPC service, or unix:PATH; port 0 selects a free port"
    )
    metrics_listen: Address | None = Field(None, description="HOST:PORT of the Prometheus metrics; off by default")
    advertise: Annotated[str, AfterValidator(addresses.checked_advertised)] | None = Field(
        None,
        description="HOST or HOST:PORT that clients call, if it is not that of --listen: for a server that listens on "
        "0.0.0.0, or behind NAT; it is printed, and written to --targets-file",
    )
    targets_file: Path | None = Field(
        None,
        description="write the addresses that clients call to this file when the server is ready, as JSON for "
        "LOGITPORT_TARGET=file:PATH and Prometheus' file_sd_configs",
    )
    processes: int = Field(
        1,
        ge=1,
        le=256,
        description="number of servers, each a process with a port of its own: that of --listen and the next ones; "
        "they share their registrations and --metrics-listen, and are started again when they end",
    )
    health_listen: Address | None = Field(
        None,
        description="HOST:PORT of the gRPC health checks alone, without TLS, for probes that cannot use TLS, such as "
        "those of Kubernetes; off by default",
    )
    tokens: Path | None = Field(
        None, description="file of permitted callers, by token hash or certificate; reloaded when it changes"
    )
    tls_cert: Path | None = Field(None, description="PEM certificate chain of the gRPC service")
    tls_key: Path | None = Field(None, description="PEM private key of that certificate")
    tls_client_ca: Path | None = Field(
        None, description="PEM certificates of authorities; clients must present a certificate signed by one of them"
    )
    device: Annotated[str, AfterValidator(_device)] = Field(
        "auto", description="where processors that read logits run: auto, cpu, cuda or cuda:INDEX"
    )
    logits_processors: list[Annotated[str, AfterValidator(_processor_path)]] = Field(
        default=[],
        description="module.path:Class of an installed processor; requests name it by the same text; it is "
        "trusted and runs in the server's own process; may be given more than once",
    )
    entry_points: bool = Field(
        True, description="load the processors of installed packages (entry-point group logitport.processors)"
    )
    vllm_entry_points: bool = Field(
        False,
        description="load the processors that packages provide for vLLM (entry-point group vllm.logits_processors)",
    )
    enable_custom_logit_processor: bool = Field(
        False, description="accept shipped processors; this runs code that clients send"
    )
    programs: bool = Field(
        True,
        description="accept programs: processors that read logits, as data that is verified, which runs no code of "
        "clients; with tokens, registering them needs the scope register",
    )
    max_message_bytes: int = Field(
        256 << 20,
        ge=1 << 16,
        le=(1 << 31) - 1,
        description="maximum size of a gRPC message in either direction, in bytes; 256 rows of 152k float32 logits "
        "take 156 MB",
    )
    max_requests_per_session: int = Field(1024, ge=1, description="maximum number of requests in one session")
    max_processors_per_request: int = Field(64, ge=1, description="maximum number of processors in one request's chain")
    max_params_bytes: int = Field(
        1 << 20,
        ge=1,
        description="maximum size of a request's JSON in bytes: its sampling parameters and its processors' parameters",
    )
    max_draft_tokens: int = Field(256, ge=0, description="maximum number of draft tokens of a request in one step")
    max_step_bytes: int = Field(
        1 << 20,
        ge=1 << 10,
        description="maximum size of the frame with a step's columns, in bytes; 1024 rows of drafts take 40 kB",
    )
    max_step_work: int = Field(
        32768,
        ge=1,
        description="maximum work of a step: for each request, its rows or drafts times its processors, added up; the "
        "same limit applies to its new ids times its processors",
    )
    max_tokens_per_request: int = Field(
        1 << 20, ge=1, description="maximum number of token ids of one request, including drafts"
    )
    max_connections: int = Field(
        1024, ge=1, description="maximum number of open connections; further connections are closed"
    )
    max_streams_per_connection: int = Field(
        128,
        ge=1,
        description="maximum number of calls and sessions on one connection; further ones wait for their turn",
    )
    max_sessions: int = Field(256, ge=1, description="maximum number of open sessions")
    max_sessions_per_principal: int = Field(64, ge=1, description="maximum number of open sessions of one principal")
    max_calls_per_principal: int = Field(
        64, ge=1, description="maximum number of in-flight calls of one principal, without sessions"
    )
    max_call_rate: Annotated[str, AfterValidator(_rate)] = Field(
        "1000/second",
        description="maximum rate of calls of one principal; opening a session counts as a call, a step does not",
    )
    stall_seconds: float = Field(
        60.0, gt=0, description="how long a client may take to send a call's message or to receive a reply, in seconds"
    )
    keepalive_seconds: float = Field(
        30.0, ge=1, description="keepalive ping interval of idle connections, and timeout of a ping, in seconds"
    )
    local_transport: bool = Field(True, description="offer a Unix socket and shared memory to engines on this host")
    share_device_memory: bool = Field(
        True, description="edit logits in place (CUDA IPC) if the engine is on this host and uses the server's GPU"
    )
    max_region_bytes: int = Field(2 << 30, ge=0, description="maximum shared memory of one session, in bytes")
    store: Annotated[str, AfterValidator(_store)] | None = Field(
        None,
        description="where registered processors, names and quarantines are kept: a folder, for the servers of one "
        "host, or redis://HOST:PORT/DATABASE (rediss:// with TLS), for those of many; set a URL with a password in the "
        "environment",
    )
    store_key: Path | None = Field(
        None,
        description="file with the secret of the fleet, 32 bytes or more; entries of the store without its HMAC are "
        "ignored; required for redis://",
    )
    trusted_keys: Path | None = Field(
        None, description="folder of public keys (*.pub); only shipped processors signed by one of them are accepted"
    )
    max_registered_processors: int = Field(1024, ge=1, description="maximum number of registered processors")
    max_processors_per_principal: int = Field(
        256, ge=1, description="maximum number of registered processors of one principal, and of its names"
    )
    max_payload_bytes: int = Field(
        16 << 20,
        ge=1,
        description="maximum length of a payload in characters; each byte of a pickle or program takes two "
        "hexadecimal digits",
    )
    isolation: Literal["process", "none"] = Field(
        "process",
        description="where shipped processors run: process (one sandboxed process for each author) or none (in the "
        "server's own process: only for code that you would run yourself)",
    )
    require_tenant: bool = Field(
        False,
        description="refuse requests that name no tenant, so that users of one engine do not share a trust domain",
    )
    without_layer: list[LayerName] = WITHOUT_LAYER
    require_layer: list[LayerName] = REQUIRE_LAYER
    tokenizer: list[Annotated[str, AfterValidator(_tokenizer)]] = Field(
        default=[],
        description="NAME=PATH of a tokenizer.json for grammars, or of its folder; sessions select it by tokenizer_id, "
        "requests by a parameter; if there is only one, it is the default; may be given more than once",
    )
    worker_python: list[Annotated[str, AfterValidator(_worker_python)]] = Field(
        default=[],
        description="VERSION=PATH of another Python, for processors shipped from that version, for example "
        "3.12=/opt/python3.12/bin/python; it needs logitport, and torch for processors that read logits; may be given "
        "more than once",
    )
    max_workers: int = Field(
        64,
        ge=1,
        description="maximum number of worker processes, one for each author or tenant with processors in use; "
        "when all are in use, each calling principal has an equal share",
    )
    worker_memory_bytes: int = Field(2 << 30, ge=64 << 20, description="maximum memory of one worker, in bytes")
    worker_threads: int = Field(32, ge=4, description="maximum number of threads and processes of one worker")
    processor_timeout_seconds: float = Field(
        2.0,
        gt=0,
        le=3600,
        description="deadline of all calls of shipped processors, and of programs, in one step, in seconds",
    )
    program_milliseconds: float = Field(
        DEFAULT_LIMIT_MS,
        gt=0,
        le=1e6,
        description="longest time that a program may take for one row, in the worst case that is computed for this "
        "machine, in milliseconds of one core",
    )
    load_timeout_seconds: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="timeout of loading a shipped processor and of starting a request with it, in seconds",
    )
    quarantine_after: int = Field(
        3,
        ge=1,
        description="a shipped processor is quarantined for its caller when failures that end its worker, and slow "
        "calls, have taken this many times --processor-timeout-seconds within ten minutes",
    )
    loader_cache_size: int = Field(
        128, ge=1, description="maximum number of cached processor classes with --isolation none"
    )
    move_seconds: float = Field(
        20.0,
        ge=0,
        description="how long to wait after SIGTERM for sessions that can move to another server, in seconds",
    )
    max_session_age: float | None = Field(
        None,
        gt=0,
        description="ask a session to move to another server after about this many seconds, so that servers which "
        "were added get load; off if not set",
    )
    drain_seconds: float = Field(
        5.0, ge=0, description="how long in-flight steps may take to finish after SIGTERM, in seconds"
    )
    custom_ops: list[str] = CUSTOM_OPS
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(str.lower)] = Field(
        "info", description="minimum level of logged messages"
    )
    log_format: LogFormat = Field(
        "text", description="how the log is written: text, or json with one object a line and the fields of events"
    )

    @property
    def requires_authentication(self) -> bool:
        """Whether callers must authenticate."""
        return self.tokens is not None or self.tls_client_ca is not None

    @property
    def call_rate(self) -> Rate:
        """The maximum rate of calls of one principal."""
        return Rate.parse(self.max_call_rate)

    @property
    def has_remote_store(self) -> bool:
        """Whether registrations are kept in Redis."""
        return self.store is not None and "://" in self.store

    @property
    def has_workers(self) -> bool:
        """Whether shipped processors run in sandboxed processes."""
        return self.enable_custom_logit_processor and self.isolation == "process"

    def start_logging(self) -> None:
        """Log to stderr, unless the program has configured logging itself."""
        logs.configure(self.log_level, self.log_format)

    @classmethod
    def variables(cls) -> list[str]:
        """Return the names of the environment variables of all options."""
        return [PREFIX + name.upper() for name in cls.model_fields]

    @model_validator(mode="after")
    def _check_unique_names(self) -> ServerConfig:
        for option, given in (("--tokenizer", self.tokenizer), ("--worker-python", self.worker_python)):
            names = [value.partition("=")[0] for value in given]
            if duplicates := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{option} {duplicates[0]}=... is given twice; give each name once")
        return self

    @model_validator(mode="after")
    def _check_layers(self) -> ServerConfig:
        check_layers(self.without_layer, self.require_layer)
        return self

    @model_validator(mode="after")
    def _check_store_options(self) -> ServerConfig:
        if self.has_remote_store and self.store_key is None:
            raise ValueError(
                "--store redis:// needs --store-key: whoever can write to Redis could otherwise have code run; write a "
                "key with `openssl rand -hex 32`, and give it to all servers of the fleet"
            )
        if self.store_key is not None and self.store is None:
            raise ValueError("--store-key needs --store")
        return self

    @model_validator(mode="after")
    def _check_addresses(self) -> ServerConfig:
        for address in (self.listen, self.advertise):
            if address is not None:
                addresses.nth(address, self.processes - 1)
        if addresses.is_socket(self.listen) and self.advertise is not None:
            raise ValueError("--advertise needs --listen HOST:PORT: only this host can reach a Unix socket")
        if addresses.has_free_port(self.listen) and self.advertise is not None and addresses.names_port(self.advertise):
            raise ValueError("--advertise HOST:PORT needs a port in --listen; write --advertise HOST for a free port")
        if self.targets_file is not None and self.advertise is None and addresses.is_wildcard(self.listen):
            raise ValueError(f"--targets-file needs --advertise HOST: clients cannot call {self.listen}")
        if self.processes > 1 and self.health_listen is not None:
            raise ValueError("--health-listen is for one server: with --processes, check the health at each address")
        return self

    @model_validator(mode="after")
    def _check_tls_options(self) -> ServerConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key need each other; give both")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        return self
