"""`--config`, `--print-config`, and errors that name the flag, the variable or the file of a value."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from logitport_server.cli.root import run
from logitport_server.command_line import parse
from logitport_server.config import ServerConfig
from logitport_server.config.sources import KEYS, VARIABLES
from logitport_server.lifecycle.start_errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.usefixtures("no_variables")


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Runs `logitport serve` in this process. Returns the lines on stderr."""

    def run_to_exit(*arguments: str) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            run(["serve", *arguments])
        assert ended.value.code == 2
        return capsys.readouterr().err.splitlines()

    return run_to_exit


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "logitport.toml"
        path.write_text(text)
        return str(path)

    return write


def test_flag_environment_file_default(file: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file('device = "cpu"\nlog-level = "error"\nquarantine-after = 3\nkeepalive-seconds = "90s"')
    monkeypatch.setenv("LOGITPORT_LOG_LEVEL", "warning")
    monkeypatch.setenv("LOGITPORT_QUARANTINE_AFTER", "4")
    run(["serve", "--config", path, "--print-config", "--quarantine-after", "5", "--no-programs"])
    lines = capsys.readouterr().out.splitlines()
    assert f'device = "cpu" # {path}' in lines
    assert f'keepalive-seconds = "90s" # {path}' in lines
    assert 'log-level = "warning" # LOGITPORT_LOG_LEVEL' in lines
    assert "quarantine-after = 5 # --quarantine-after" in lines
    assert "programs = false # --no-programs" in lines
    assert "max-workers = 64 # default" in lines


def test_a_printed_configuration_is_read(file: Any, capsys: Any) -> None:
    run(["serve", "--print-config", "--stop-seconds", "1h", "--worker-memory-bytes", "3GiB", "--advertise", "off"])
    first = capsys.readouterr().out
    run(["serve", "--print-config", "--config", file(first)])
    values = [[line.partition(" #")[0] for line in text.splitlines()] for text in (first, capsys.readouterr().out)]
    assert values[0] == values[1]
    assert 'stop-seconds = "1h"' in values[0]


def test_errors_name_where_a_value_comes_from(refused: Any, file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file('device = "tpu"\nmax-workers = 0\nstore = "ftp://x"')
    monkeypatch.setenv("LOGITPORT_MAX_WORKERS", "-1")
    assert refused("--config", path, "--keepalive-seconds", "soon") == [
        "logitport: --keepalive-seconds: 'soon' is not a duration; write, for example, 500ms, 30s, 2m, 1h or 1h30m",
        f"logitport: {path}: device: 'tpu' is not a device; write auto, cpu, cuda or cuda:INDEX",
        f"logitport: {path}: store: ftp:// is no store; write a folder, redis://HOST:PORT/DATABASE or rediss://...",
        "logitport: LOGITPORT_MAX_WORKERS: Input should be greater than or equal to 1",
    ]


def test_an_unknown_key(refused: Any, file: Any) -> None:
    path = file("max-worker = 1")
    assert refused("--config", path) == [f"logitport: {path}:1: unknown key 'max-worker'; did you mean max-workers?"]


@pytest.mark.parametrize("value", ["5", "1.5", "true", "[]", "2020-01-01", "{a = 1}", '"x"'])
@pytest.mark.parametrize("key", sorted(KEYS))
def test_no_value_of_another_type_ends_in_a_traceback(file: Any, key: str, value: str) -> None:
    with suppress(UsageError):  # many are valid
        parse(ServerConfig, "logitport serve", ["--config", file(f"{key} = {value}")])


def test_a_file_of_the_environment(refused: Any, file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file("device = 1.5")
    monkeypatch.setenv("LOGITPORT_CONFIG", path)
    assert refused() == [f"logitport: {path}: device: Input should be a valid string"]


def test_print_config_is_a_flag_alone(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_PRINT_CONFIG", "false")
    run(["serve", "--print-config"])
    assert "listen = " in capsys.readouterr().out
    assert "LOGITPORT_PRINT_CONFIG" not in VARIABLES
    assert "LOGITPORT_CONFIG" in VARIABLES


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--port", "50051"], "No such option '--port'. Did you mean '--listen'?"),
        (["--host", "0.0.0.0"], "No such option '--host'. Did you mean '--listen'?"),
        (["--metric-listen", "x"], "No such option '--metric-listen'. Did you mean '--metrics-listen'?"),
        (["--max-wokers=3"], "No such option '--max-wokers'. Did you mean '--max-workers'?"),
        (["--no-program"], "No such option '--no-program'. Did you mean '--no-programs'?"),
        (["--metrics"], "No such option '--metrics'"),  # not an abbreviation
        (["--qqq"], "No such option '--qqq'."),
        (["extra"], "Got unexpected extra argument (extra)"),
    ],
)
def test_unknown_options(refused: Any, arguments: list[str], line: str) -> None:
    first, second = refused(*arguments)
    assert first.startswith(f"logitport: {line}")
    assert second == "Try: logitport serve --help"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serv"], "No such command 'serv'. Did you mean 'serve'?"),
        (["payload", "inspct", "x"], "No such command 'inspct'. Did you mean 'inspect'?"),
        (["qqq"], "No such command 'qqq'."),
        (["ray", "dwn"], "No such command 'dwn'. Did you mean 'down'?"),
        (["ray", "up", "--min-servers", "2"], "No such option '--min-servers'"),
    ],
)
def test_unknown_commands(capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"logitport: {line}")
