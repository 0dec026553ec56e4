"""Environment variables of hooks: the client, and the default chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument, Tls
from logitport.integrations.common import environment
from logitport_server.config import ServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logitport import Client


@pytest.fixture(autouse=True)
def target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")
    monkeypatch.delenv("LOGITPORT_STEP_TIMEOUT_SECONDS", raising=False)


@pytest.fixture
def made() -> Iterator[list[Client]]:
    clients: list[Client] = []
    yield clients
    for client in clients:
        client.close()


@pytest.mark.parametrize("target", [None, "embedded"])
def test_without_a_server(
    made: list[Client], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, target: str | None
) -> None:
    environment._log_embedded.cache_clear()
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)
    if target is not None:
        monkeypatch.setenv("LOGITPORT_TARGET", target)
    with caplog.at_level("INFO"):
        made.append(environment.client())
    assert made[0].target == "embedded"
    (record,) = caplog.records
    assert "logitport is embedded" in record.message
    assert record.levelname == ("WARNING" if target is None else "INFO")
    assert ("LOGITPORT_TARGET is not set" in record.message) == (target is None)


@pytest.mark.parametrize(
    ("value", "timeout", "reconnect"),
    [(None, 25.0, 15.0), ("", 25.0, 15.0), ("0.5", 0.5, 0.5), ("120", 120.0, 120.0)],
)
def test_the_times_to_wait_for_a_step_and_for_a_service_that_restarts(
    made: list[Client], monkeypatch: pytest.MonkeyPatch, value: str | None, timeout: float, reconnect: float
) -> None:
    if value is not None:
        monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", value)
    made.append(environment.client())
    assert made[0].timeout == timeout
    assert timeout > ServerConfig().load_timeout_seconds or value, "a slow load must fail only its own request"
    assert environment.reconnect_seconds() == reconnect


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("STEP_TIMEOUT_SECONDS", value) for value in ("0", "-1", "nan", "inf", "soon", "1e-9", "3601")),
        ("CUSTOM_OPS", "apply_edits"),
        ("TLS", "no such file"),
        *(("REQUEST_PROCESSORS", value) for value in ("all", "builtin,", "none,builtin", "Builtin")),
        *(("REQUEST_KEYS", value) for value in ("any,mine", "mine,")),
        *(("TENANT", value) for value in ("calendar", "calendar:", ":f", "calendar:missing", "no_such_module:f")),
    ],
)
def test_an_invalid_variable_is_refused_at_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"LOGITPORT_{name}", value)
    with pytest.raises(InvalidArgument, match=value if name == "TLS" else f"LOGITPORT_{name}"):
        environment.client()


def test_a_server_name_enables_tls(made: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", "10.0.0.1:1,10.0.0.2:1")
    monkeypatch.setenv("LOGITPORT_TOKEN", "secret")
    with pytest.raises(InvalidArgument, match="unencrypted"):
        environment.client()
    monkeypatch.setenv("LOGITPORT_TLS_SERVER_NAME", "servers.example")
    made.append(environment.client())


@pytest.mark.parametrize("present", [("ca.crt",), ("tls.crt", "tls.key"), ("ca.crt", "tls.crt", "tls.key"), ()])
def test_tls_files_are_the_certificate_of_the_authority_or_a_folder_as_kubernetes_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: tuple[str, ...]
) -> None:
    monkeypatch.setenv("LOGITPORT_TLS", "/etc/ca.pem")
    monkeypatch.setenv("LOGITPORT_TLS_SERVER_NAME", "servers.example")
    assert environment._tls() == Tls("/etc/ca.pem", server_name="servers.example")
    monkeypatch.setenv("LOGITPORT_TLS", str(tmp_path))
    if not present:
        with pytest.raises(InvalidArgument, match=r"LOGITPORT_TLS: the folder .* add ca\.crt"):
            environment._tls()
        return
    for name in present:
        (tmp_path / name).write_text("PEM")
    files = {name: str(tmp_path / name) for name in present}
    expected = Tls(files.get("ca.crt"), files.get("tls.crt"), files.get("tls.key"), server_name="servers.example")
    assert environment._tls() == expected


def test_misspelled_variables_are_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment.warn_about_misspelled.cache_clear()
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESORS", "[]")
    monkeypatch.setenv("LOGITPORT_ENABLE_CUSTOM_LOGIT_PROCESSOR", "true")  # the server's
    for _ in range(2):
        environment.client().close()
    (warning,) = caplog.messages
    assert "LOGITPORT_DEFAULT_PROCESORS " in warning
    assert "LOGITPORT_DEFAULT_PROCESSORS" in warning


def test_the_environment_may_hold_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(environment.default_chain()) == []
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["disallowed_tokens", {"token_ids": [1]}]]')
    assert list(environment.default_chain()) == [("disallowed_tokens", {"token_ids": [1]})]
    monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", "nonsense")
    with pytest.raises(InvalidArgument, match="LOGITPORT_DEFAULT_PROCESSORS"):
        environment.default_chain()
