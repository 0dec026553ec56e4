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
from typing import Any

import pytest
import torch

from logitport.core import compiled
from logitport_server.access import TokenFile
from logitport_server.cli.root import run
from logitport_server.command_line import parse
from logitport_server.config import ServerConfig

COMMAND = str(Path(sys.executable).with_name("logitport"))
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("serve --listen x", "--listen: 'x'"),
        ("serve --listen unix:relative", "--listen: 'unix:relative'"),
        ("serve --listen", "--listen"),
        ("serve --device tpu", "--device: 'tpu'"),
        ("serve --max-message-bytes 5", "--max-message-bytes: Input should be greater than or equal to 65536"),
        ("serve --max-workers 0", "--max-workers"),
        ("serve --stop-seconds soon", "--stop-seconds: 'soon'"),
        ("serve --max-call-rate fast", "--max-call-rate: 'fast'"),
        ("serve --log-level loud", "--log-level: Input should be 'debug', 'info', 'warning' or 'error'"),
        ("serve --tls-cert x", "--tls-cert and --tls-key"),
        ("serve --tls-client-ca x", "--tls-client-ca needs --tls-cert"),
        ('serve --tokenizer "a', "--tokenizer"),
        ("serve --config /missing", "/missing"),
        ("serve --layers moat=off", "'moat' is not a layer"),
        ("serve --layers limits", "'limits'"),
        ("serve --layers limits=on", "'limits=on'"),
        ("serve --layers limits=off --layers limits=required", "--layers limits=... is given twice"),
        ("doctor --layers moat=off", "'moat' is not a layer"),
        ("serve --port 50051", "No such option '--port'. Did you mean '--listen'?"),
        ("serve --host 0.0.0.0", "Did you mean '--listen'?"),
        ("serve --max-wokers=3", "Did you mean '--max-workers'?"),
        ("serve --no-program", "Did you mean '--no-programs'?"),
        ("serve --metrics", "No such option '--metrics'"),  # not an abbreviation
        ("serve nonsense", "(nonsense)"),
        ("serv", "Did you mean 'serve'?"),
        ("qqq", "No such command 'qqq'."),
        ("--nonsense serve", "--nonsense"),
        ("payload inspct x", "Did you mean 'inspect'?"),
        ("payload sign", ""),
        ("ray up --min-servers 2", "'--min-servers'"),
        ("status", ""),
        ("processors", ""),
        ("processors get 127.0.0.1:1", ""),
        ("sessions list 127.0.0.1:1 --yaml", "--yaml"),
        ("top 127.0.0.1:1 --interval 0", ""),
        ("drain localhost", "localhost"),
        ("token a+b --scope apply", "NAME: 'a+b' is not a valid principal name"),
        ("token a --scope root", "--scope: Input should be 'apply', 'register', 'admin' or 'cuda'"),
        ("token a --scope apply --expires soon", "--expires: "),
        ("token a --scope apply --expires=-1d", "--expires: '-1d' is not a duration"),
    ],
)
def test_wrong_usage(logitport: Any, arguments: str, error: str) -> None:
    """One line says what is wrong, and another one where the help is if the command was not understood."""
    ended = logitport(*arguments.split())
    assert (ended.status, ended.out) == (2, "")
    first, *rest = ended.err.splitlines()
    assert first.startswith("logitport: ")
    assert error in first
    assert not rest or rest[0].startswith("Try: ")


def test_an_invalid_variable(logitport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_DEVICE", "tpu")
    ended = logitport("serve")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "'tpu' is not a device" in ended.err


def test_an_empty_variable_is_a_value(logitport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty LOGITPORT_TOKENS must not turn authentication off."""
    monkeypatch.setenv("LOGITPORT_DEVICE", "")
    assert logitport("serve").status == 2
    monkeypatch.setenv("LOGITPORT_TOKENS", "")
    assert parse(ServerConfig, "logitport serve", ["--device", "cpu"]).requires_authentication


@pytest.mark.parametrize(
    ("value", "written"), [("foo:Bar", '["foo:Bar"]'), ('"foo:Bar"', '["foo:Bar"]'), ("{}", '["..."]')]
)
def test_a_variable_that_is_not_a_list(logitport: Any, monkeypatch: Any, value: str, written: str) -> None:
    monkeypatch.setenv("LOGITPORT_LOGITS_PROCESSORS", value)
    message = f"logitport: LOGITPORT_LOGITS_PROCESSORS: write a JSON list, such as {written}\n"
    assert logitport("serve") == (2, "", message)


@NO_CUDA
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
@pytest.mark.slow
def test_a_missing_device(logitport: Any, device: str) -> None:
    ended = logitport("serve", "--device", device, "--listen", "127.0.0.1:0")
    assert ended.err.startswith(f"logitport: --device {device}: torch sees 0 CUDA devices")


def test_a_folder_with_a_path_too_long_for_a_socket(
    logitport: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    message = logitport("serve", "--device", "cpu", "--listen", "127.0.0.1:0").err
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


@pytest.mark.slow
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


def test_unreadable_files_of_sign(logitport: Any, tmp_path: Path) -> None:
    (tmp_path / "payload").write_text("{}")
    for name, message in (("missing", "cannot read a payload from"), ("payload", "no private key can be read from")):
        ended = logitport("payload", "sign", tmp_path / name, "--key", tmp_path / "key")
        assert ended.status == 1
        assert message in ended.err
