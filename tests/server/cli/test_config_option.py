"""`--config`, `--print-config`, and errors that name the flag, the variable or the file of a value."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from logitport_server.cli.root import run
from logitport_server.cli.serve import Serve
from logitport_server.config import UsageError
from logitport_server.config.sources import keys_of

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
@pytest.mark.parametrize("key", sorted(keys_of(Serve)))
def test_no_value_of_another_type_ends_in_a_traceback(file: Any, key: str, value: str) -> None:
    with suppress(ValidationError, UsageError):  # many are valid
        Serve(config=file(f"{key} = {value}"))


def test_a_file_of_the_environment(refused: Any, file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file("device = 1.5")
    monkeypatch.setenv("LOGITPORT_CONFIG", path)
    assert refused() == [f"logitport: {path}: device: Input should be a valid string"]


def test_print_config_is_a_flag_alone(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_PRINT_CONFIG", "false")
    run(["serve", "--print-config"])
    assert "listen = " in capsys.readouterr().out
    assert "LOGITPORT_PRINT_CONFIG" not in Serve.variables()
    assert "LOGITPORT_CONFIG" in Serve.variables()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--port", "50051"], "unknown option --port; did you mean --listen?"),
        (["--host", "0.0.0.0"], "unknown option --host; did you mean --listen?"),
        (["--metric-listen", "x"], "unknown option --metric-listen; did you mean --metrics-listen?"),
        (["--max-wokers=3"], "unknown option --max-wokers; did you mean --max-workers?"),
        (["--no-program"], "unknown option --no-program; did you mean --no-programs?"),
        (["--metrics"], "unknown option --metrics"),  # not an abbreviation
        (["--qqq"], "unknown option --qqq"),
        (["extra"], "unexpected argument 'extra'"),
        (["--listen"], "--listen: expected one argument"),
    ],
)
def test_unknown_options(refused: Any, arguments: list[str], line: str) -> None:
    first, second = refused(*arguments)
    assert first.startswith(f"logitport: {line}")
    assert second == "Try: logitport serve --help"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["serv"], "unknown command 'serv'; did you mean serve?"),
        (["inspct", "x"], "unknown command 'inspct'; did you mean inspect?"),
        (["qqq"], "unknown command 'qqq'"),
        (["ray", "dwn"], "unknown command 'dwn'; did you mean down?"),
        (["ray", "up", "--min-servers", "2"], "unknown option --min-servers"),
    ],
)
def test_unknown_commands(capsys: pytest.CaptureFixture[str], arguments: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"logitport: {line}")
