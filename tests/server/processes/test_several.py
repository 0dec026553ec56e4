"""The options of each of several servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from logitport_server.cli.serve import Serve
from logitport_server.command_line import parse
from logitport_server.config import ServerConfig
from logitport_server.processes.server_process import ServerProcess
from logitport_server.processes.several import server_configs
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_variables")


def test_what_differs_and_what_is_the_same() -> None:
    config = ServerConfig(
        processes=3,
        listen="0.0.0.0:50051",
        advertise="logits.example:7000",
        metrics_listen="10.0.0.1:9090",
        max_workers=7,
    )
    configs = server_configs(config)
    assert [one.listen for one in configs] == ["0.0.0.0:50051", "0.0.0.0:50052", "0.0.0.0:50053"]
    assert [one.advertise for one in configs] == [f"logits.example:{port}" for port in (7000, 7001, 7002)]
    assert {one.metrics_listen for one in configs} == {"127.0.0.1:0"}, "their parent reads and checks them"
    assert {(one.processes, one.max_workers) for one in configs} == {(1, 7)}
    assert {one.metrics_listen for one in server_configs(ServerConfig(processes=2))} == {"127.0.0.1:0"}


def test_options_survive_the_way_to_the_child() -> None:
    config = ServerConfig(
        processes=2,
        tokens=Path("/etc/tokens"),
        tokenizer=["a=/b"],
        layers=["landlock=off"],
        store="rediss://user:p%40ss@redis.example/0",
        store_key=Path("key"),
        max_session_age=30,
    )
    (first, _) = server_configs(config)
    assert sent(first) == first


def test_options_of_the_command_and_its_file_are_not_sent(tmp_path: Path) -> None:
    """The parent has read the file. It may be another one when a server is started again."""
    file = tmp_path / "logitport.toml"
    file.write_text('stop-seconds = "7s"\n')
    (first, _) = server_configs(parse(Serve, "logitport serve", ["--processes", "2", "--config", str(file)]))
    file.unlink()
    assert sent(first).stop_seconds == 7.0


def sent(config: ServerConfig) -> ServerConfig:
    """The options that a child receives."""
    process = ServerProcess(config, [sys.executable, "-c", "import sys; print(sys.stdin.readline())"])
    wait_until(lambda: process.status is not None)
    line = process._reports.read()
    process.end()
    return ServerConfig(**json.loads(line))
