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


def test_errors_name_where_a_value_comes_from(refused: Any, file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file('device = "tpu"\nmax-workers = 0\nstore = "ftp://x"')
    monkeypatch.setenv("LOGITPORT_MAX_WORKERS", "-1")
    assert refused("--config", path, "--keepalive-seconds", "soon") == [
        "logitport: --keepalive-seconds: 'soon' is not a duration; write, for example, 500ms, 30s, 2m, 1h or 1h30m",
        f"logitport: {path}: device: 'tpu' is not a device; write auto, cpu, cuda or cuda:INDEX",
        f"logitport: {path}: store: ftp:// is no store; write a folder, redis://HOST:PORT/DATABASE or rediss://...",
        "logitport: LOGITPORT_MAX_WORKERS: Input should be greater than or equal to 1",
    ]


@pytest.mark.parametrize("value", ["5", "1.5", "true", "[]", "2020-01-01", "{a = 1}", '"x"'])
@pytest.mark.parametrize("key", sorted(KEYS))
@pytest.mark.slow
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
