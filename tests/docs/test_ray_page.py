"""docs/ray.md matches the code."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from logitport.servers import targets
from logitport_fleet import directory, options, scaling
from logitport_fleet.commands import Down, ShowFleet, Up
from logitport_fleet.options import AUTH_MODE
from logitport_server.cli.root import run
from logitport_server.config import ServerConfig
from logitport_server.lifecycle import launch_backoff
from tests.docs.pages import blocks, read

PAGE = read("docs/ray.md")
OF_RAY = {"head"}
COMMANDS = re.findall(r"^(logitport ray (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
assert COMMANDS


def field_of(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


@pytest.mark.parametrize("option", sorted(set(re.findall(r"--([a-z][a-z-]+)", PAGE))))
def test_every_option_is_one(option: str) -> None:
    known = {name for model in (Up, ShowFleet, Down, ServerConfig) for name in model.model_fields}
    assert field_of(option) in known | OF_RAY | {"generate"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_valid(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    for model in (Up, ShowFleet, Down):
        monkeypatch.setattr(model, "run", lambda self: ran.append(self))  # noqa: PLW0108 - a method of list is not bound
    monkeypatch.setenv("LOGITPORT_STORE", "redis://:password@redis.example/0")
    run(shlex.split(command.replace("\\\n", ""))[1:])
    (given,) = ran
    if isinstance(given, Up):
        assert given.serve_options
        options.parse_serve_options(given.serve_options)


@pytest.mark.parametrize(("option", "default"), re.findall(r"`--([a-z-]+)` \(([\d.]+)\)", PAGE))
def test_its_default_is_the_default(option: str, default: str) -> None:
    assert Up.model_fields[field_of(option)].default == float(default)


def test_names_and_numbers() -> None:
    assert f"[{directory.METRICS_LABEL}]" in PAGE
    assert f":{options.FleetOptions().list_port}{directory.PATH}" in PAGE
    assert f"export {AUTH_MODE}=token" in PAGE
    assert f"delays of up to {launch_backoff._MAX_SECONDS:g} s" in PAGE
    assert f"below {100 * scaling._SLACK:g} %" in PAGE
    assert scaling._SETTLE_SECONDS == 60
    assert options.FleetOptions().addresses(0, "h") == ("h:20051", "127.0.0.1:21051")


def test_the_example_of_a_client() -> None:
    (block,) = blocks(PAGE)
    opened: list[str] = []
    exec(block, {"Client": opened.append})
    assert targets.source_of(opened[0]).changes
