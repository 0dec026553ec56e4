"""The options that the child of a supervisor receives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from logitport_server.command_line import parse
from logitport_server.config import ServerConfig
from logitport_server.processes.child_process import ChildProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_variables")


def test_options_survive_the_way_to_the_child() -> None:
    config = ServerConfig(
        tokens=Path("/etc/tokens"),
        tokenizer=["a=/b"],
        layers=["landlock=off"],
        store="rediss://user:p%40ss@redis.example/0",
        store_key=Path("key"),
        max_session_age=30,
    )
    assert sent(config) == config


def test_the_configuration_file_is_not_read_again(tmp_path: Path) -> None:
    """The parent has read the file. It may be another one when a server is started again."""
    file = tmp_path / "logitport.toml"
    file.write_text('stop-seconds = "7s"\n')
    config = parse(ServerConfig, "logitport serve", ["--config", str(file)])
    file.unlink()
    assert sent(config).stop_seconds == 7.0


def sent(config: ServerConfig) -> ServerConfig:
    """The options that a child receives."""
    process = ChildProcess(config, [sys.executable, "-c", "import sys; print(sys.stdin.readline())"])
    wait_until(lambda: process.status is not None)
    line = process._reports.read()
    process.end()
    return ServerConfig(**json.loads(line))
