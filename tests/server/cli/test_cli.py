"""The command: an invalid option is reported in one line."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport.core import compiled
from logitport_server.access import TokenFile
from logitport_server.cli.root import run
from logitport_server.command_line import parse
from logitport_server.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND = str(Path(sys.executable).with_name("logitport"))
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.fixture
def logitport(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int | str | None, str]]:
    """Runs the command in this process. Returns exit status and stderr."""
    # `serve` sets these for its whole process; here they would stay for the tests after this one.
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")

    def run_to_exit(*arguments: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as ended:
            run(list(arguments))
        return ended.value.code, capsys.readouterr().err

    return run_to_exit


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--listen", "x"], "--listen: 'x' is not HOST:PORT; write, for example, 127.0.0.1:50051"),
        (["--device", "tpu"], "--device: 'tpu' is not a device; write auto, cpu, cuda or cuda:INDEX"),
        (["--max-message-bytes", "5"], "--max-message-bytes: Input should be greater than or equal to 65536"),
        (["--stop-seconds", "soon"], "--stop-seconds: 'soon' is not a duration; write, for example, 500ms, 30s,"),
        (["--log-level", "loud"], "--log-level: Input should be 'debug', 'info', 'warning' or 'error'"),
    ],
)
def test_an_invalid_option(logitport: Any, arguments: list[str], line: str) -> None:
    status, errors = logitport("serve", *arguments)
    assert status == 2
    assert errors.startswith(f"logitport: {line}")
    assert errors.count("\n") == 1


def test_an_invalid_variable(logitport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_DEVICE", "tpu")
    status, errors = logitport("serve")
    assert (status, errors.count("\n")) == (2, 1)
    assert "'tpu' is not a device" in errors


def test_an_empty_variable_is_a_value(logitport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty LOGITPORT_TOKENS must not turn authentication off."""
    monkeypatch.setenv("LOGITPORT_DEVICE", "")
    assert logitport("serve")[0] == 2
    monkeypatch.setenv("LOGITPORT_TOKENS", "")
    assert parse(ServerConfig, "logitport serve", ["--device", "cpu"]).requires_authentication


@pytest.mark.parametrize(
    ("value", "written"), [("foo:Bar", '["foo:Bar"]'), ('"foo:Bar"', '["foo:Bar"]'), ("{}", '["..."]')]
)
def test_a_variable_that_is_not_a_list(logitport: Any, monkeypatch: Any, value: str, written: str) -> None:
    monkeypatch.setenv("LOGITPORT_LOGITS_PROCESSORS", value)
    message = f"logitport: LOGITPORT_LOGITS_PROCESSORS: write a JSON list, such as {written}\n"
    assert logitport("serve") == (2, message)


@pytest.mark.parametrize(
    "arguments",
    [["serve", "--nonsense"], ["nonsense"], ["serve", "nonsense"], ["--nonsense", "serve"]],
)
def test_an_unknown_option(logitport: Any, arguments: list[str]) -> None:
    status, errors = logitport(*arguments)
    assert status == 2
    assert "nonsense" in errors


@NO_CUDA
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_missing_device(logitport: Any, device: str) -> None:
    message, _ = logitport("serve", "--device", device, "--listen", "127.0.0.1:0")
    assert message == f"logitport: --device {device}: torch sees 0 CUDA devices; use auto or cpu"


def test_a_folder_with_a_path_too_long_for_a_socket(
    logitport: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    message, _ = logitport("serve", "--device", "cpu", "--listen", "127.0.0.1:0")
    assert message.startswith(f"logitport: cannot create the socket of the local transport in {folder}")
    assert "TMPDIR" in message
    assert "--no-local-transport" in message
    assert not any(folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_an_address_in_use(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = {"--listen": "127.0.0.1:0", "--device": "cpu", "--log-level": "warning", option: address}
        done = subprocess.run(
            [COMMAND, "serve", *(part for pair in options.items() for part in pair)],
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"logitport: cannot listen on {address}")
    assert f"choose another one with {option}" in done.stderr


def test_an_unknown_variable_is_logged_at_start_up(logitport: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("LOGITPORT_ENABLE_CUSTOM_LOGIT_PROCESOR", "true")
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")  # hooks read it
    monkeypatch.setattr("logging.Logger.handle", lambda _, record: messages.append(record.getMessage()))
    messages: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        logitport("serve", "--device", "cpu", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert [line for line in messages if "LOGITPORT_" in line] == [
        "LOGITPORT_ENABLE_CUSTOM_LOGIT_PROCESOR is set in the environment, and nothing here reads it; set "
        "LOGITPORT_ENABLE_CUSTOM_LOGIT_PROCESSOR if that is what was meant; logitport serve --help has all options"
    ]


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["serve", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in ServerConfig.model_fields)


def test_a_missing_library_is_reported_with_the_package_to_install() -> None:
    code = "import sys; sys.modules['pydantic'] = None; from logitport_server.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "status"], check=False, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 1
    assert (
        done.stderr
        == "logitport: pydantic is not installed; install it from a clone of logitport: pip install '.[server]'\n"
    )


def test_the_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERSION", "of something else")
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert ended.value.code == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (printed["logitport"], printed["torch"]) == (version("logitport"), version("torch"))
    assert (printed["python"], printed["core"]) == (platform.python_version(), compiled.NAME)


def test_a_created_token_is_accepted_by_the_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(["token", "team/ci", "--scope", "apply", "--scope", "register", "--expires", "2d"])
    token, line = capsys.readouterr().out.splitlines()
    (tmp_path / "tokens").write_text(line)
    grant = TokenFile(tmp_path / "tokens").by_token(token)
    assert grant is not None
    assert (grant.name, grant.scopes) == ("team/ci", {"apply", "register"})
    assert grant.expires is not None
    assert timedelta(days=1) < grant.expires - datetime.now(timezone.utc) <= timedelta(days=2)


@pytest.mark.parametrize(("scopes", "alone"), [(("register", "cuda"), False), (("cuda",), True), (("apply",), None)])
def test_the_risk_of_the_scope_cuda_is_printed(
    capsys: pytest.CaptureFixture[str], scopes: tuple[str, ...], alone: bool | None
) -> None:
    run(["token", "team/gpu", *(part for scope in scopes for part in ("--scope", scope))])
    out, errors = capsys.readouterr()
    assert json.loads(out.splitlines()[1])["scopes"] == sorted(scopes)
    assert ("cannot be fully contained" in errors) == (alone is not None)
    assert ("cuda alone permits no call" in errors) == bool(alone)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["a b", "--scope", "apply"], "NAME: 'a b' is not a valid principal name"),
        (["a", "--scope", "root"], "--scope: Input should be 'apply', 'register', 'admin' or 'cuda'"),
        (["a", "--scope", "apply", "--expires", "soon"], "--expires: "),
        (["a", "--scope", "apply", "--expires=-1d"], "--expires: '-1d' is not a duration"),
    ],
)
def test_invalid_options_of_a_token(logitport: Any, arguments: list[str], line: str) -> None:
    status, errors = logitport("token", *arguments)
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith(f"logitport: {line}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tls-cert", "x"], "--tls-cert and --tls-key need each other"),
        (["--tls-client-ca", "x"], "--tls-client-ca needs --tls-cert"),
        (["--listen", "unix:relative"], "--listen: 'unix:relative' is not unix:PATH with an absolute path"),
        (["--max-call-rate", "fast"], "--max-call-rate: 'fast' is not a rate; write, for example, 1000/second"),
    ],
)
def test_invalid_options_of_access(logitport: Any, options: list[str], message: str) -> None:
    status, errors = logitport("serve", *options)
    assert (status, errors.count("\n")) == (2, 1)
    assert errors.startswith(f"logitport: {message}")


def test_unreadable_files_of_sign(logitport: Any, tmp_path: Path) -> None:
    message, _ = logitport("payload", "sign", str(tmp_path / "missing"), "--key", str(tmp_path / "key"))
    assert "cannot read a payload from" in message
    (tmp_path / "payload").write_text("{}")
    message, _ = logitport("payload", "sign", str(tmp_path / "payload"), "--key", str(tmp_path / "key"))
    assert "no private key can be read from" in message
