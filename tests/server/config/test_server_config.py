"""The server's options."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from logitport.system.frame_limits import DEFAULT_MAX_MESSAGE_BYTES
from logitport_server.command_line import parse
from logitport_server.config import ServerConfig
from logitport_server.config.sources import VARIABLES
from logitport_server.lifecycle.start_errors import UsageError

pytestmark = pytest.mark.usefixtures("no_variables")


def test_defaults_are_safe() -> None:
    config = ServerConfig()
    assert not config.enable_custom_logit_processor
    assert config.listen.startswith("127.0.0.1:")
    assert config.metrics_listen is None


def test_client_and_server_have_the_same_message_limit() -> None:
    assert ServerConfig().max_message_bytes == DEFAULT_MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("listen", value) for value in ("", "x", ":1", "x:", "x:-1", "x:65536", "x:1.0", "x:port")),
        *(
            ("max_call_rate", value)
            for value in ("", "fast", "0/second", "5/0 second", "-1/second", "1/fortnight", "1e3/day")
        ),
        *(("device", value) for value in ("", "CPU", "cuda:", "cuda:-1", "cuda:x", "mps", "cpu\n")),
        *(("max_message_bytes", value) for value in (0, 1 << 31, "x", None)),
        *((field, 0) for field in ("max_requests_per_session", "max_processors_per_principal", "max_workers")),
        *(("stop_seconds", value) for value in (-1, float("nan"), "x")),
        *(("max_region_bytes", value) for value in (-1, 1.5)),
        *(
            ("worker_python", [value])
            for value in ("", "3.12", "/usr/bin/python", "3.12=python", "2.7=/usr/bin/python")
        ),
        *(("processor_timeout_seconds", value) for value in (0, -1, 3601, float("nan"))),
        *((field, 0) for field in ("max_workers", "quarantine_after", "load_timeout_seconds", "worker_threads")),
        ("isolation", "maybe"),
        *(("store", value) for value in ("http://x", "redis://", "rediss://u:p@/0")),
        ("store_key", "key"),  # without a store
        ("max_step_work", 0),
        *(("advertise", value) for value in ("", "0.0.0.0", "a:0", "a,b")),
        ("tokenizer", ["a=/x", "b=/x", "a=/y"]),
        ("worker_python", ["3.12=/x", "3.12=/y"]),
        ("nonsense", 1),
    ],
)
def test_invalid_values(field: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        ServerConfig(**{field: value})


@pytest.mark.parametrize(("listen", "advertise"), [("unix:/a", "b"), ("a:0", "b:5")])
def test_addresses_that_contradict_each_other(listen: str, advertise: str) -> None:
    with pytest.raises(ValidationError, match="--listen"):
        ServerConfig(listen=listen, advertise=advertise)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("listen", value) for value in ("127.0.0.1:0", "[::]:50051", "0.0.0.0:65535", "my-host.example:1")),
        *(("device", value) for value in ("auto", "cpu", "cuda", "cuda:0", "cuda:12")),
        ("stop_seconds", 0),
        ("max_message_bytes", (1 << 31) - 1),
    ],
)
def test_valid_values(field: str, value: Any) -> None:
    assert getattr(ServerConfig(**{field: value}), field) == value


@pytest.mark.parametrize("url", ["redis://127.0.0.1/0", "rediss://u:p@h:1/2?ssl_ca_certs=/x"])
def test_a_remote_store_needs_a_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="needs --store-key"):
        ServerConfig(store=url)
    monkeypatch.setenv("LOGITPORT_STORE", url)
    monkeypatch.setenv("LOGITPORT_STORE_KEY", "/key")
    config = parse(ServerConfig, "logitport serve", [])
    assert (config.store, config.has_remote_store) == (url, True)
    assert not ServerConfig(store="/a/folder").has_remote_store


def test_every_option_has_a_variable() -> None:
    assert {*VARIABLES.values()} == {*ServerConfig.model_fields}
    assert "LOGITPORT_LISTEN" in VARIABLES


def test_every_option_has_a_description() -> None:
    assert all(field.description for field in ServerConfig.model_fields.values())


def test_a_program_sets_all_options_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_LISTEN", "127.0.0.1:1")
    assert ServerConfig().listen == "127.0.0.1:50051"


@pytest.mark.parametrize("arguments", [["--store", "--no-programs"], ["--tokenizer", "--require-tenant"]])
def test_an_option_without_its_value_does_not_take_the_next_option(arguments: list[str]) -> None:
    with pytest.raises(UsageError, match=f"{arguments[0]} needs a value, and {arguments[1]} is an option"):
        parse(ServerConfig, "serve", arguments)
