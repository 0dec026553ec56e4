"""The options of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from logitport_fleet.options import FleetOptions, parse_serve_options, require_token_mode
from logitport_server.cli.root import run
from logitport_server.lifecycle.start_errors import StartupError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": 0}, "greater than or equal to 1"),
        ({"servers": 2, "min": 3}, "not in this order"),
        ({"servers": 2, "max": 1}, "not in this order"),
        ({"port_base": 20050}, "--list-port and --port-base both use port 20050"),
        ({"servers": 1000, "metrics_port_base": 20100}, "--port-base and --metrics-port-base both use port 20100"),
        ({"port_base": 65000, "max": 1000}, "would have port 65999"),
        ({"host": "::"}, "clients cannot connect to ::"),
        ({"host": "0.0.0.0"}, "clients cannot connect to 0.0.0.0"),
        ({"serve_options": ["--listen", "127.0.0.1:1"]}, "the fleet chooses the addresses"),
        ({"serve_options": ["--metrics-listen=127.0.0.1:1"]}, "the fleet chooses the addresses"),
    ],
)
def test_invalid(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FleetOptions(**options)


def test_addresses_depend_on_the_index_only() -> None:
    options = FleetOptions(servers=3, max=5)
    assert (options.min_servers, options.max_servers) == (3, 5)
    assert options.addresses(0, "10.0.0.5") == ("10.0.0.5:20051", "127.0.0.1:21051")
    assert options.addresses(4, "10.0.0.5") == ("10.0.0.5:20055", "127.0.0.1:21055")
    exposed = FleetOptions(host="fd00::1", expose_metrics=True)
    assert exposed.addresses(1, "") == ("[fd00::1]:20052", "[fd00::1]:21052")


def test_only_the_size_can_change() -> None:
    running = FleetOptions(servers=2, serve_options=["--no-programs"])
    assert running.differs_in_size_only(FleetOptions(servers=4, max=9, serve_options=["--no-programs"]))
    assert not running.differs_in_size_only(FleetOptions(servers=2))
    assert not running.differs_in_size_only(FleetOptions(port_base=30000, serve_options=["--no-programs"]))


def test_options_of_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_STORE", "/of/the/node")
    config = parse_serve_options(
        ["--tls-cert", "c", "--tls-key", "k", "--logits-processors", "a:B", "--logits-processors", "c:D"]
    )
    assert (config.tls_cert, config.store, config.logits_processors) == (Path("c"), "/of/the/node", ["a:B", "c:D"])
    with pytest.raises(StartupError, match=r"after --: .*--nonsense"):
        parse_serve_options(["--nonsense"])
    with pytest.raises(StartupError, match=r"after --: No such option '--max-wokers'. .*'--max-workers'"):
        parse_serve_options(["--max-wokers", "1"])
    with pytest.raises(StartupError, match="after --: --max-workers: Input should be greater"):
        parse_serve_options(["--max-workers", "0"])


def test_arguments_after_the_dashes_are_kept_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from logitport_fleet.commands import Up

    given: list[list[str]] = []
    monkeypatch.setattr(Up, "run", lambda self: given.append(self.serve_options))
    kept = ["--logits-processors", '["a","b"]', "--store", "a,b", "--servers", "--", '"x', ""]
    run(["ray", "up", "--servers", "3", "--", *kept])
    run(["ray", "up"])
    assert given == [kept, []]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "--servers", "0"], "logitport: --servers: Input should be greater than or equal to 1\n"),
        (["up", "--servers", "2", "--min", "3"], "logitport: --min 3, --servers 2 and --max 2 are not in this order\n"),
    ],
)
def test_an_invalid_option_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["ray", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("command", ["up", "status", "down"])
@pytest.mark.parametrize("mode", [None, "disabled", ""])
def test_the_token_mode_of_ray_is_required(command: str, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(SystemExit, match=r"RAY_AUTH_MODE is not set to token .* `ray get-auth-token --generate`"):
        run(["ray", command])
    require_token_mode({"RAY_AUTH_MODE": "Token"}, "here")
