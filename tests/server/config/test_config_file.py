"""The configuration file: precedence, errors, and the file that `--print-config` writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.cli.serve import Serve
from logitport_server.command_line import parse
from logitport_server.config import ServerConfig
from logitport_server.config.sources import KEYS, add_sources, to_toml
from logitport_server.lifecycle.start_errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("no_variables")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the configuration file."""

    def write(text: str) -> Path:
        path = tmp_path / "logitport.toml"
        path.write_text(text)
        return path

    return write


def read(path: Path) -> ServerConfig:
    return parse(ServerConfig, "logitport serve", ["--config", str(path)])


def test_values(file: Any) -> None:
    text = """
    listen = "127.0.0.1:1"
    metrics-listen = "off"
    programs = false
    keepalive-seconds = "2m"
    stop-seconds = 3
    worker-memory-bytes = "1GiB"
    tokens = "/etc/tokens"
    layers = ["seccomp=required", "landlock=off"]
    max-session-age = "1h"
    """
    config = read(file(text))
    assert (config.listen, config.metrics_listen) == ("127.0.0.1:1", None)
    assert (config.programs, config.keepalive_seconds, config.stop_seconds) == (False, 120, 3)
    assert (config.worker_memory_bytes, str(config.tokens)) == (1 << 30, "/etc/tokens")
    assert (config.required_layers, config.waived_layers, config.max_session_age) == (["seccomp"], ["landlock"], 3600)


def test_precedence(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file('device = "cuda:1"\nlog-level = "debug"\nmax-requests-per-session = 3')
    monkeypatch.setenv("LOGITPORT_CONFIG", str(path))
    monkeypatch.setenv("LOGITPORT_DEVICE", "cuda:2")
    monkeypatch.setenv("LOGITPORT_LOG_LEVEL", "warning")
    config = parse(ServerConfig, "logitport serve", ["--device", "cuda:3"])
    assert (config.device, config.log_level, config.max_requests_per_session, config.max_workers) == (
        "cuda:3",
        "warning",
        3,
        64,
    )
    _, origins = add_sources({"device": "cuda:3"})
    assert origins == {
        "config": "LOGITPORT_CONFIG",
        "device": str(path),  # the command replaces it
        "log_level": "LOGITPORT_LOG_LEVEL",
        "max_requests_per_session": str(path),
    }


def test_a_flag_replaces_the_file_of_the_environment(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_CONFIG", "/missing")
    assert read(file("max-requests-per-session = 3")).max_requests_per_session == 3
    assert parse(ServerConfig, "logitport serve", ["--config", "off"]).max_requests_per_session == 1024


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metric-listen = 'a:1'", ":1: unknown key 'metric-listen'; did you mean metrics-listen?"),
        ("config = 'x'", ":1: unknown key 'config'"),
        ("print-config = true", ":1: unknown key 'print-config'"),
        ("[listening]\nlisten = 'a:1'", r":1: \[listening\] is a table"),
        ("device = 'cpu'\nlisten = ", "is not TOML: .* line 2 col"),
        ("device = 'cpu'\ndevice = 'cpu'", 'is not TOML: .*"device"'),
        ("# listen\n\nlisten = 'a:1'\n  zzz = 1 # zzz\nzz = 2", ":4: unknown key 'zzz'$"),
        ("tokenizer = [\n  'zzz = 1',\n]\n\nzzz = 1", ":5: "),
        ("log-level = '''\nzzz = 1\n'''\n'zzz' = 1", ":4: "),
        ("listen = 'a:1'\nzzz.one = 1\nzzz.two = 2", ":2: "),
        ("listen = 'a:1'\n\n[zzz]\nlisten = 'a:1'", ":3: "),
        ("listen = 'a:1'\n[[zzz]]\n[[zzz]]", ":2: "),
        *(
            (f"{key} = true", f"{key}: true is not a value of this option")
            for key in ("max-requests-per-session", "program-milliseconds", "keepalive-seconds", "max-session-age")
        ),
    ],
)
def test_an_error_has_the_file_and_the_line_of_an_unknown_key(file: Any, text: str, message: str) -> None:
    path = file(text)
    with pytest.raises(UsageError, match=f"{path}.*{message}" if message[0] != ":" else f"^{path}{message}"):
        read(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, tmp_path / "bytes"):
        with pytest.raises(UsageError, match=f"cannot read the configuration file {path}"):
            read(path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "listen": "unix:/run/a b.sock",
            "tokens": "/etc/to\"ken's",
            "programs": False,
            "program_milliseconds": 0.123,
            "tokenizer": ["a=/x,y", 'b="/z"'],
            "max_region_bytes": 12345,
            "keepalive_seconds": 123.456,
            "stop_seconds": 0,
            "max_session_age": 1e5 / 3,
            "store": "/var/lib/logitport",
            "store_key": "/key",
            "log_level": "DEBUG",
        },
    ],
)
def test_a_printed_configuration_can_be_read(file: Any, options: dict[str, Any]) -> None:
    config = ServerConfig(**options)
    again = read(file(to_toml(config, {})))
    assert again.model_dump(exclude={"config"}) == config.model_dump(exclude={"config"})


def test_what_is_printed(file: Any) -> None:
    path = file("max-requests-per-session = 3")
    arguments = ["--config", str(path), "--print-config", "--worker-memory-bytes", "1GiB"]
    config = parse(Serve, "logitport serve", arguments)
    text = to_toml(config, {"max_requests_per_session": str(path), "worker_memory_bytes": "--worker-memory-bytes"})
    lines = text.splitlines()
    assert lines[:2] == ["# Listening", 'listen = "127.0.0.1:50051" # default']
    assert 'worker-memory-bytes = "1GiB" # --worker-memory-bytes' in lines
    assert f"max-requests-per-session = 3 # {path}" in lines
    assert 'max-session-age = "off" # default' in lines
    assert {line.partition(" ")[0] for line in lines if line and not line.startswith("#")} == {*KEYS}
    assert text.endswith("\n")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:secret@h:1/2", "redis://u:***@h:1/2"),
        ("rediss://:secret@h/0?ssl_ca_certs=/x", "rediss://:***@h/0?ssl_ca_certs=/x"),
        ("redis://h/0?db=1&password=secret&x=y", "redis://h/0?db=1&password=***&x=y"),
        ("redis://u:se%40cr@et@h/0", "redis://u:***@h/0"),
    ],
)
def test_passwords_are_hidden(file: Any, url: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = to_toml(ServerConfig(store=url, store_key="/key"), {"store": "LOGITPORT_STORE"})  # type: ignore[arg-type]
    assert f'store = "{shown}" # LOGITPORT_STORE\n' in text
    assert "secret" not in text
    assert 'store = "redis://user@h/0"' in to_toml(ServerConfig(store="redis://user@h/0", store_key="/key"), {})  # type: ignore[arg-type]
    path = file(text)
    with pytest.raises(UsageError, match=r"the password is \*\*\*, .* set the URL in LOGITPORT_STORE"):
        read(path)
    monkeypatch.setenv("LOGITPORT_STORE", url)
    assert read(path).store == url


def test_servers_of_one_host_do_not_read_the_file_again(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file("max-requests-per-session = 3")
    monkeypatch.setenv("LOGITPORT_CONFIG", str(path))
    sent = parse(Serve, "logitport serve", []).model_dump_json()
    path.write_text("nonsense = 1")
    assert ServerConfig(**json.loads(sent)).max_requests_per_session == 3
